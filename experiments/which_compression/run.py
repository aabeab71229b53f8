"""Map which compression is first at equal loss: `python -m experiments.which_compression.run`.

For each latency and bandwidth between two regions it asks what `jaxpipe plan --objective loss`
asks: plans are searched and simulated uncompressed, with codecs, with a bottleneck at the middle of
the model, with both, and with islands inside of the regions. Rows are written to `results/map.csv`,
and drawn as a table.
"""

import tomllib
from collections.abc import Mapping
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe.cli.plan_loss import loss_settings
from jaxpipe.config import Config, config_from
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.time_to_loss import propose_to_loss
from jaxpipe.topo.toml_text import toml_text

_HERE = Path(__file__).parent
_REGIONS = ("west", "east")
UNCOMPRESSED, ISLANDS = "uncompressed", "islands"
KINDS = (UNCOMPRESSED, "codecs", "rank", "rank and codecs", ISLANDS)

Case = Mapping[str, Any]


def main() -> None:
    """Plan all methods for all links, write the rows, and print the map."""
    case = tomllib.loads((_HERE / "cases.toml").read_text())
    links = tuple(product(case["latency_ms"], case["bandwidth_gbps"]))
    file = Path("runs/which_compression/cluster.toml").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [_row(case, file, *link) for link in counted(links, "links")]
    write_csv(rows, _HERE / "results" / "map.csv")
    print(markdown(map_of(rows)))


def map_of(rows: list[Row]) -> list[Row]:
    """Return a table of latencies by bandwidths: the first at equal loss, and how much sooner."""
    latencies = sorted({float(row["latency_ms"]) for row in rows})
    cells = {(float(row["latency_ms"]), float(row["gbps"])): row for row in rows}
    return [
        {"latency, ms": latency}
        | {
            f"{gbps:g} Gbps": f"{_short(str(row['first']))}, {float(row['sooner']):.2f} x"
            for (of, gbps), row in cells.items()
            if of == latency
        }
        for latency in latencies
    ]


def _short(name: str) -> str:
    """Return a method without the steps after which islands meet, the same everywhere.

    >>> _short("2 islands, every 30 steps, int8"), _short("codecs")
    ('2 islands, int8', 'codecs')
    """
    return ", ".join(part for part in name.split(", ") if not part.startswith("every "))


def _row(case: Case, file: Path, latency_ms: float, gbps: float) -> Row:
    file.write_text(toml_text(_cluster(case["cluster"], latency_ms, gbps)))
    answer = propose_to_loss(_config(case, file), SearchOptions(budget=case["budget_s"]))
    # The first of a kind is its best.
    kinds = {_kind(method.name): method for method in reversed(answer.by_time)}
    seconds = {kind: kinds[kind].equal_loss_s if kind in kinds else inf for kind in KINDS}
    return {
        "latency_ms": latency_ms,
        "gbps": gbps,
        **seconds,
        "first": answer.best.name,
        "settings": " ".join(loss_settings(answer.best)),
        "sooner": seconds[UNCOMPRESSED] / answer.best.equal_loss_s,
    }


def _kind(name: str) -> str:
    return next((kind for kind in KINDS if kind == name), ISLANDS)


def _config(case: Case, file: Path) -> Config:
    return config_from(
        {
            "run": {"folder": "runs/which_compression"},
            "data": {"folder": "data/text"},
            # Outer steps need parameters in float32.
            "model": {"preset": case["model"], "param_dtype": "float32"},
            "plan": {"cluster": str(file)},
            "train": {"batch": case["batch"], "steps": case["steps"]},
        }
    )


def _cluster(cluster: Case, latency_ms: float, gbps: float) -> dict[str, Any]:
    """Return the cluster file: all connections between the regions share one bandwidth."""
    hosts = [
        {"region": region, "count": cluster["hosts"], "gpu": cluster["gpu"], "devices": 1}
        for region in _REGIONS
    ]
    ways = (_REGIONS, _REGIONS[::-1])
    return {
        "name": "two-data-centres",
        "hosts": hosts,
        "inside_region": {
            "latency_ms": cluster["inside_latency_ms"],
            "bandwidth_gbps": cluster["inside_gbps"],
        },
        "across_regions": {"latency_ms": latency_ms, "bandwidth_gbps": gbps},
        "trunks": [{"source": a, "destination": b, "capacity_gbps": gbps} for a, b in ways],
    }


if __name__ == "__main__":
    main()
