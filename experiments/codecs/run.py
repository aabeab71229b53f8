"""`python -m experiments.codecs.run [RUN ...]` trains with the codecs in cases.toml.

It writes results/ after each run. Without a name it makes all runs; with names those alone, and
keeps what results/losses.csv holds of the others.
"""

import csv
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from experiments.codecs.curve import Curve, read_curves, run_case, write_curves
from experiments.codecs.picture import draw

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"

Row = Mapping[str, str]


def main(names: Sequence[str]) -> None:
    """Make the runs of these names, or all of them."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    by_name = {case["name"]: case for case in cases["runs"]}
    curves = read_curves(_RESULTS / "losses.csv") if names else {}
    with TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # all runs compile the same
        for name in names or by_name:
            curves[name] = run_case(
                by_name[name], config=cases["config"], settings=cases["settings"]
            )
            done = [curves[known] for known in by_name if known in curves]
            _report(done, last=cases["last"])


def _report(curves: Sequence[Curve], *, last: int) -> None:
    """Write all results; what the first run is, the others are compared with."""
    rows = [_row(curve, curves[0], last=last) for curve in curves]
    write_curves(curves, _RESULTS / "losses.csv")
    with (_RESULTS / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table = _markdown(rows)
    (_RESULTS / "summary.md").write_text(table)
    print(table, flush=True)
    draw(curves, _RESULTS / "curves.png")


def _row(curve: Curve, first: Curve, *, last: int) -> Row:
    (_, held_out), (_, held_out_first) = curve.held_out[-1], first.held_out[-1]
    return {
        "run": curve.name,
        "held-out loss": f"{held_out:.4f}",
        f"more than {first.name}": f"{held_out - held_out_first:+.4f}",
        f"training loss, last {last}": f"{curve.training_loss(last=last):.4f}",
        "MB a step": f"{curve.bytes_per_step / 1e6:.3f}",
        f"of {first.name}": f"{curve.bytes_per_step / first.bytes_per_step:.1%}",
    }


def _markdown(rows: Sequence[Row]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1:])
