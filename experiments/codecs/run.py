"""`python -m experiments.codecs.run` trains with each codec in `cases.toml` and writes results/."""

import csv
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from experiments.codecs.curve import Curve, run_case
from experiments.codecs.picture import draw

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"

Row = Mapping[str, str | int | float]


def main() -> None:
    """Train every case, and write the table, the curves and their picture."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    curves: list[Curve] = []
    with TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # all cases compile the same
        for case in cases["runs"]:
            curves.append(run_case(case, config=cases["config"], settings=cases["settings"]))
            print(_markdown(_rows(curves, last=cases["last"])[-1:]), flush=True)
    rows = _rows(curves, last=cases["last"])
    _write(rows, _RESULTS / "summary.csv")
    (_RESULTS / "summary.md").write_text(_markdown(rows))
    _write(_losses(curves), _RESULTS / "losses.csv")
    draw(curves, _RESULTS / "curves.png")


def _rows(curves: Sequence[Curve], *, last: int) -> list[Row]:
    plain = curves[0]
    return [
        {
            "codec": curve.name,
            "held-out loss": curve.held_out[-1][1],
            "more than none": f"{curve.held_out[-1][1] - plain.held_out[-1][1]:+.4f}",
            f"training loss, last {last}": curve.training_loss(last=last),
            "MB a step": curve.bytes_per_step / 1e6,
            "of none": f"{curve.bytes_per_step / plain.bytes_per_step:.1%}",
        }
        for curve in curves
    ]


def _losses(curves: Sequence[Curve]) -> list[Row]:
    return [
        {
            "codec": curve.name,
            "step": m.step,
            "loss": m.loss,
            "held_out": "" if m.eval_loss is None else m.eval_loss,
            "sent_bytes": m.sent_bytes,
        }
        for curve in curves
        for m in curve.steps
    ]


def _write(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _text(cell) for key, cell in row.items()} for row in rows)


def _markdown(rows: Sequence[Row]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[_text(cell) for cell in row.values()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(cell: str | float) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    main()
