"""Train with the codecs of `cases.toml`: `python -m experiments.codecs.run [RUN ...]`.

Results are written after each run. By default, all runs are made; with names, only those, and
`results/losses.csv` keeps the others.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from experiments.codecs.curve import Curve, read_curves, run_case, write_curves
from experiments.codecs.picture import draw
from experiments.progress import counted
from experiments.table import Row, markdown, write_csv

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"


def main(names: Sequence[str]) -> None:
    """Make the named runs; by default, all."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    by_name = {case["name"]: case for case in cases["runs"]}
    curves = read_curves(_RESULTS / "losses.csv") if names else {}
    with TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # all runs compile the same programs
        for name in counted(names or list(by_name), "runs"):
            curves[name] = run_case(
                by_name[name], config=cases["config"], settings=cases["settings"]
            )
            done = [curves[known] for known in by_name if known in curves]
            _report(done, last=cases["last"])


def _report(curves: Sequence[Curve], *, last: int) -> None:
    """Write all results; the first run is the baseline."""
    rows = [_row(curve, curves[0], last=last) for curve in curves]
    write_curves(curves, _RESULTS / "losses.csv")
    write_csv(rows, _RESULTS / "summary.csv")
    table = markdown(rows)
    (_RESULTS / "summary.md").write_text(table + "\n")
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


if __name__ == "__main__":
    main(sys.argv[1:])
