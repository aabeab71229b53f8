"""`python -m experiments.unlike_replicas.picture` draws results/measured.svg from measured.csv."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxpipe.pictures import new_figure, save
from jaxpipe.pictures.palette import BLUE, GREY

_RESULTS = Path(__file__).parent / "results"
_WIDTH = 0.38


def draw(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Draw measured and predicted seconds per step of each case, one below the other."""
    figure = new_figure(width_in=8.0, height_in=3.6)
    axes = figure.subplots()
    for name, shift, color in (("measured", -1, BLUE), ("predicted", 1, GREY)):
        places = [place + shift * _WIDTH / 2 for place in range(len(rows))]
        bars = axes.barh(
            places,
            [float(row[f"{name}_s"]) for row in rows],
            height=_WIDTH,
            color=color,
            label=name,
        )
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axes.set_yticks(
        range(len(rows)),
        [f"{row['case']}\nlayers {row['layers']}, samples {row['samples']}" for row in rows],
        fontsize=8,
    )
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step")
    axes.set_title("Ranks with one, a half and a quarter of a core", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.margins(x=0.1)
    save(figure, path)


if __name__ == "__main__":
    with (_RESULTS / "measured.csv").open() as file:
        draw(list(csv.DictReader(file)), _RESULTS / "measured.svg")
