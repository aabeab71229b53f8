"""Train with boundaries of low rank: `python -m experiments.low_rank.run [BOUNDARY ...]`.

Each run adds a row to `results/runs.csv`; what is there is not run again. `results/loss.csv` has
the runs beside the uncompressed ones, `results/summary.md` their means.
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import jax

from experiments.codecs.curve import run_case
from experiments.progress import counted
from experiments.table import Row, append_csv, grouped, markdown, numbers, read_csv, write_csv
from jaxpipe.config import load_config
from jaxpipe.models import num_parameters

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"
_RUNS = _RESULTS / "runs.csv"
_NONE = "none"


def main(names: Sequence[str]) -> None:
    """Make the runs of the named boundaries, by default of all, that have no result yet."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    known = {_key(row) for row in _read()}
    keys = [key for key in _keys(cases) if key not in known and (not names or key[0] in names)]
    with TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # seeds run the same programs
        for boundary, rank, seed in counted(keys, "runs"):
            bottlenecks = [[after, rank] for after in cases["boundaries"][boundary]]
            changes = [f"model.bottlenecks={bottlenecks}", f"run.seed={seed}"]
            curve = run_case(
                {"name": boundary, "settings": changes},
                config=cases["config"],
                settings=cases["settings"],
            )
            loss = curve.held_out[-1][1]
            row = {"boundary": boundary, "rank": rank, "seed": seed, "loss": repr(loss)}
            append_csv(row, _RUNS)
    report(cases)


def report(cases: Mapping[str, Any]) -> None:
    """Write the tables of all runs whose uncompressed run is there, too."""
    model = load_config(cases["config"], cases["settings"]).model
    size = num_parameters(model, layers=model.num_layers, embed=True, head=True)
    runs = _read()
    plain = {row["seed"]: float(row["loss"]) for row in runs if row["boundary"] == _NONE}
    rows: list[Row] = [
        {
            "parameters": size,
            "boundary": row["boundary"],
            "rank": int(row["rank"]),
            "seed": int(row["seed"]),
            "bytes_ratio": model.dim / int(row["rank"]),
            "loss": f"{float(row['loss']):.4f}",
            "uncompressed_loss": f"{plain[row['seed']]:.4f}",
        }
        for row in sorted(runs, key=lambda row: (row["boundary"], -int(row["rank"]), row["seed"]))
        if row["boundary"] != _NONE and row["seed"] in plain
    ]
    write_csv(rows, _RESULTS / "loss.csv")
    groups = grouped(rows, "boundary", "rank")
    table = markdown(
        [
            _summary(group, groups[boundary, str(model.dim)])
            for (boundary, _), group in groups.items()
        ]
    )
    (_RESULTS / "summary.md").write_text(table + "\n")
    print(table)


def _summary(rows: Sequence[Row], whole: Sequence[Row]) -> Row:
    """Return the means of some seeds, beside those of the same seeds with `whole` width."""
    losses, plain = numbers(rows, "loss"), numbers(rows, "uncompressed_loss")
    seeds = {row["seed"] for row in rows}
    of_whole = numbers([row for row in whole if row["seed"] in seeds], "loss")
    return {
        "after layers": rows[0]["boundary"],
        "rank": rows[0]["rank"],
        "fewer bytes": f"{float(rows[0]['bytes_ratio']):.0f} x",
        "held-out loss": f"{mean(losses):.3f}",
        "lowest, highest": f"{min(losses):.3f}, {max(losses):.3f}",
        "to uncompressed": f"{mean(losses) / mean(plain) - 1:+.1%}",
        "to all numbers": f"{mean(losses) / mean(of_whole) - 1:+.1%}",
        "seeds": len(rows),
    }


def _keys(cases: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield boundary, rank and seed of each run; without a boundary, the rank is the width."""
    for seed in cases["seeds"]:
        for boundary, layers in cases["boundaries"].items():
            for rank in cases["ranks"] if layers else cases["ranks"][:1]:
                yield boundary, rank, seed


def _key(row: Mapping[str, str]) -> tuple[str, int, int]:
    return row["boundary"], int(row["rank"]), int(row["seed"])


def _read() -> list[dict[str, str]]:
    return read_csv(_RUNS) if _RUNS.exists() else []


if __name__ == "__main__":
    main(sys.argv[1:])
