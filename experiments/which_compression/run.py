"""Map which compression is first at equal loss: `python -m experiments.which_compression.run`.

For each latency and bandwidth between two regions, plans are searched and simulated: uncompressed,
with codecs, with a bottleneck at the middle of the model, with both, and with an island in each
region. Rows are written to `results/map.csv`, and drawn as a table.
"""

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, cluster_from, config_from
from jaxpipe.errors import PlanError
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.outer_advice import Choice, outer_choices
from jaxpipe.propose.proposal import Proposal, propose
from jaxpipe.topo.toml_text import toml_text

_HERE = Path(__file__).parent
_REGIONS = ("west", "east")
UNCOMPRESSED = "uncompressed"
SYSTEMS = (UNCOMPRESSED, "codecs", "rank", "rank and codecs", "islands", "islands, int8")

Case = Mapping[str, Any]


def main() -> None:
    """Plan all systems for all links, write the rows, and print the map."""
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
            f"{gbps:g} Gbps": f"{row['first']}, {float(row['sooner']):.2f} x"
            for (of, gbps), row in cells.items()
            if of == latency
        }
        for latency in latencies
    ]


def _row(case: Case, file: Path, latency_ms: float, gbps: float) -> Row:
    file.write_text(toml_text(_cluster(case["cluster"], latency_ms, gbps)))
    seconds = _seconds(case, file)
    # Of equal ones the gentlest, which comes first.
    first = min(SYSTEMS, key=lambda system: seconds[system])
    return {
        "latency_ms": latency_ms,
        "gbps": gbps,
        **seconds,
        "first": first,
        "sooner": seconds[UNCOMPRESSED] / seconds[first],
    }


def _seconds(case: Case, file: Path) -> dict[str, float]:
    """Return the seconds of a step of each system, those of islands at equal loss."""
    ranks = [case["bottleneck"]]
    plain = {
        UNCOMPRESSED: _proposed(case, file).split.step_s,
        "codecs": _proposed(case, file, codecs="safe").split.step_s,
        "rank": _proposed(case, file, bottlenecks=ranks).split.step_s,
        "rank and codecs": _proposed(case, file, bottlenecks=ranks, codecs="safe").split.step_s,
    }
    choices = [choice for choice in _islands(case, file) if choice.outer is not None]
    return plain | {
        system: min(choice.equal_loss_s for choice in choices if choice.codec is codec)
        for system, codec in (("islands", CodecKind.NONE), ("islands, int8", CodecKind.INT8))
    }


def _islands(case: Case, file: Path) -> Iterator[Choice]:
    """Yield outer loops of two islands, a region each, whose pipelines stay inside of it."""
    hosts = case["cluster"]["hosts"]
    for stages in (1, 2, 4):
        replicas = 2 * hosts // stages
        # In the order of the cluster, so that replicas have neighbours.
        devices = [f"{region}-{host}:0" for region in _REGIONS for host in range(hosts)]
        shape = {"stages": stages, "replicas": replicas, "devices": devices}
        try:
            proposal = _proposed(case, file, shape=shape)
        except PlanError:  # a stage does not fit into the memory of a device
            continue
        config = _config(case, file, shape=shape)
        conditions = conditions_of(config, cluster_from(config), remat=proposal.plan.remat)
        yield from outer_choices(proposal.plan, conditions, islands=2)


def _proposed(case: Case, file: Path, **changes: Any) -> Proposal:
    config = _config(case, file, **changes)
    return propose(config, SearchOptions(budget=case["budget_s"]))


def _config(
    case: Case,
    file: Path,
    *,
    codecs: str = "none",
    bottlenecks: list[list[int]] | None = None,
    shape: Mapping[str, Any] | None = None,
) -> Config:
    return config_from(
        {
            "run": {"folder": "runs/which_compression"},
            "data": {"folder": "data/text"},
            "model": {"preset": case["model"], "bottlenecks": bottlenecks or []},
            "plan": {"cluster": str(file), "codecs": codecs, **(shape or {})},
            "train": {"batch": case["batch"]},
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
