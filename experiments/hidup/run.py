"""Simulate HiDup's figures: `python -m experiments.hidup.run COMMAND`.

========== ========================================================================================
predict    print all simulated bars as CSV: figure, condition, model, system, seconds
compare    write them next to the published ones: errors, orders, pictures
fit        fit the three constants, and again without each condition, model or cluster
reachable  what the published bars contradict: the network alone, each other, orders
groups     FastMoE's bars with each time of a group of messages between hosts, and figure 8
           with a token bucket
noise      misled searches (VI.E)
search     search seconds over layers and devices (VI.F), measured
emulated   run the systems of figures 6 and 8 on 8 and 16 paced ranks; `python -m
           experiments.hidup.emulated` takes models, 32 and 64 ranks, and `figure-7`
========== ========================================================================================
"""

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from experiments.hidup import emulated
from experiments.hidup.accuracy import (
    TIE,
    Grid,
    errors,
    in_order,
    is_judged,
    predicted,
    published,
)
from experiments.hidup.reachable import (
    bucket_rows,
    group_rows,
    network_rows,
    order_rows,
    repeated_rows,
    variant_rows,
)
from experiments.hidup.robustness import noise_rows, search_rows
from experiments.hidup.workloads import Bar, fitted
from experiments.table import Row, markdown, write_csv

_RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str]) -> None:
    """Run one command."""
    name = arguments[0] if len(arguments) == 1 else ""
    if name not in _COMMANDS:
        raise SystemExit(f"usage: python -m experiments.hidup.run {'|'.join(_COMMANDS)}")
    _RESULTS.mkdir(exist_ok=True)
    _COMMANDS[name]()


def _predict() -> None:
    writer: csv.DictWriter[str] = csv.DictWriter(
        sys.stdout, fieldnames=_COLUMNS, lineterminator="\n"
    )
    writer.writeheader()
    for bar, seconds in predicted(fitted()).items():
        writer.writerow(_named(bar) | {"seconds": f"{seconds:.4f}"})


_COLUMNS = ("figure", "condition", "model", "system", "seconds")


def _named(bar: Bar) -> dict[str, str | int]:
    return {
        "figure": bar.figure,
        "condition": bar.condition,
        "model": bar.model,
        "system": bar.system.value,
    }


def _compare() -> None:
    from experiments.hidup.pictures import draw_figure

    ours, theirs = predicted(fitted()), published()
    off = errors(ours, theirs)
    write_csv(
        [
            _named(bar)
            | {
                "published s": theirs.get(bar, ""),
                "simulated s": f"{seconds:.4f}",
                "error": f"{off[bar]:+.1%}" if bar in off else "",
            }
            for bar, seconds in ours.items()
        ],
        _RESULTS / "bars.csv",
    )
    summary = [*_summaries(off), _orders(ours, theirs)]
    (_RESULTS / "summary.md").write_text("\n\n".join(summary) + "\n")
    print("\n\n".join(summary))
    for figure in (6, 7, 8):
        draw_figure(figure, ours, theirs, _RESULTS / f"figure-{figure}.png")


def _summaries(off: Mapping[Bar, float]) -> list[str]:
    rows: list[Row] = [
        {
            "figure": figure,
            "system": system,
            "bars": len(own),
            "median error": f"{median(map(abs, own)):.1%}",
            "median signed": f"{median(own):+.1%}",
            "worst": f"{max(own, key=abs):+.1%}",
        }
        for figure, system in dict.fromkeys((bar.figure, bar.system.value) for bar in off)
        for own in ([x for bar, x in off.items() if (bar.figure, bar.system) == (figure, system)],)
    ]
    worst = max(off, key=lambda bar: abs(off[bar]))
    total = f"All {len(off)} bars: median error {median(map(abs, off.values())):.1%}; the worst is "
    return [
        markdown(rows),
        f"{total}{' '.join(map(str, _named(worst).values()))}, {off[worst]:+.1%}.",
    ]


def _orders(ours: Mapping[Bar, float], theirs: Mapping[Bar, float]) -> str:
    strict, loose = in_order(ours, theirs), in_order(ours, theirs, tie=TIE)
    rows: list[Row] = [
        {
            "figure": group[0],
            "condition": group[1],
            "model": group[2],
            "published order": "yes" if strict[group] else "no",
            f"but for {TIE - 1:.0%}": "yes" if loose[group] else "no",
        }
        for group in strict
        if is_judged(group)
    ]
    counts = [sum(each[group] for group in each if is_judged(group)) for each in (strict, loose)]
    every = [sum(each.values()) for each in (strict, loose)]
    return (
        f"{markdown(rows)}\n\nOf {len(rows)} groups of 8 to 32 GPUs {counts[0]} have the published "
        f"order, {counts[1]} but for pairs within {TIE - 1:.0%}; of all {len(strict)}, {every[0]} "
        f"and {every[1]}."
    )


def _fit() -> None:
    grid = Grid.computed()
    strict, loose = grid.most_in_order()
    text = (
        f"Fitted to all bars: {grid.best(grid.theirs)}\n\n{markdown(grid.left_out())}\n\n"
        f"Of {len(grid.ours)} points of the grid none has more than {strict} of the judged groups "
        f"in the published order, and none more than {loose} but for pairs within {TIE - 1:.0%}.\n"
    )
    (_RESULTS / "fit.md").write_text(text)
    print(text)


def _reachable() -> None:
    text = "\n\n".join(
        markdown([*rows])
        for rows in (
            network_rows(),
            variant_rows(),
            repeated_rows(),
            order_rows(predicted(fitted()), published()),
        )
    )
    (_RESULTS / "reachable.md").write_text(f"{text}\n")
    print(text)


def _groups() -> None:
    tables = [markdown([*rows]) for rows in (group_rows(), bucket_rows())]
    text = "\n\n".join(tables)
    (_RESULTS / "groups.md").write_text(f"{text}\n")
    print(text)


def _noise() -> None:
    _written([*noise_rows(fitted())], "noise")


def _search() -> None:
    _written([*search_rows(fitted())], "search")


def _emulated() -> None:
    emulated.main([])


def _written(rows: list[Row], name: str) -> None:
    write_csv(rows, _RESULTS / f"{name}.csv")
    print(markdown(rows))


_COMMANDS: Mapping[str, Callable[[], None]] = {
    "predict": _predict,
    "compare": _compare,
    "fit": _fit,
    "reachable": _reachable,
    "groups": _groups,
    "noise": _noise,
    "search": _search,
    "emulated": _emulated,
}

if __name__ == "__main__":
    main(sys.argv[1:])
