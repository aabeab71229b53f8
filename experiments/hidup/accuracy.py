"""Predicted against published bars: errors, orders, and constants fitted without some bars."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import log
from pathlib import Path
from statistics import mean, median

from experiments.hidup.workloads import Bar, Constants, bars, workload
from experiments.progress import counted
from experiments.table import Row, read_csv
from jaxpipe.baselines.autoshard.duplex import OperatorDecision, search, step_s
from jaxpipe.baselines.autoshard.duplex.duplex_systems import predicted_step_s
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingGroup
from jaxpipe.baselines.systems import System

Seconds = Mapping[Bar, float]

_PUBLISHED = Path(__file__).parent / "published" / "bars.csv"
_FLOPS_PER_S = (13e12, 13.5e12, 14e12, 14.5e12)
_EFFICIENCIES = (0.88, 0.92, 0.96, 1.0, 1.04)
_SPREADS = (0.0, 1.0, 1.4, 1.6, 1.7, 1.8, 1.9, 2.0, 2.2)

_NEXT_TO = 0.02
"""Part by which a mean error may exceed the least one."""

TIE = 1.02
"""Published bars closer than this are as good as equal: they were read to a few milliseconds."""


def published() -> dict[Bar, float]:
    """Return the bars of the figures; those that ran out of memory are left out."""
    return published_bars(_PUBLISHED)


def published_bars(path: Path) -> dict[Bar, float]:
    """Return the bars of a file; those that ran out of memory are left out."""
    return {
        Bar(
            figure=int(row["figure"]),
            condition=row["condition"],
            model=row["model"],
            system=System(row["system"]),
        ): float(row["seconds"])
        for row in read_csv(path)
        if row["seconds"] != "oom"
    }


def predicted(constants: Constants) -> dict[Bar, float]:
    """Return all predicted bars."""
    return {
        bar: predicted_step_s(bar.system, workload(bar, constants))
        for bar in counted(tuple(bars()), "bars")
    }


def errors(ours: Seconds, theirs: Seconds) -> dict[Bar, float]:
    """Return the relative error of each published bar."""
    return {bar: ours[bar] / seconds - 1 for bar, seconds in theirs.items()}


def in_order(
    ours: Seconds, theirs: Seconds, *, tie: float = 1.0
) -> dict[tuple[int, str, str], bool]:
    """Return for each group of bars whether its systems have the published order.

    Pairs whose published bars differ by less than the factor `tie` may have any order.
    """
    groups: dict[tuple[int, str, str], list[Bar]] = {}
    for bar in theirs:
        groups.setdefault(bar.group, []).append(bar)
    return {
        group: all(
            ours[first] < ours[second]
            for first, second in product(members, members)
            if theirs[first] * tie < theirs[second]
        )
        for group, members in groups.items()
    }


def is_judged(group: tuple[int, str, str]) -> bool:
    """Return whether a group is of 8 to 32 GPUs: figure 6, and 8 GPUs of figure 7."""
    return group[0] == 6 or group[:2] == (7, "8 GPUs")


@dataclass(slots=True)
class Grid:
    """The predictions of the published bars for each point of a grid of constants.

    HiDup's strategies are searched at the first point, and priced at all others.
    """

    theirs: dict[Bar, float]
    ours: dict[Constants, dict[Bar, float]]

    @classmethod
    def computed(cls) -> "Grid":
        """Predict the published bars at all points."""
        theirs, ours = published(), {}
        strategies: dict[Bar, tuple[OperatorDecision, ...]] = {}
        for speed, efficiency in product(_FLOPS_PER_S, _EFFICIENCIES):
            fixed: dict[Bar, float] = {}
            for spread in _SPREADS:
                point = Constants(flops_per_s=speed, efficiency=efficiency, spread=spread)
                # Only FastMoE waits for the fullest device.
                fixed |= {
                    bar: _seconds(bar, point, strategies)
                    for bar in theirs
                    if bar.system is System.FASTMOE or bar not in fixed
                }
                ours[point] = dict(fixed)
        return cls(theirs, ours)

    def best(self, among: Iterable[Bar]) -> Constants:
        """Return the constants that explain these bars best.

        Of the points whose mean error, in logarithms, is next to the least, it is the one with most
        groups in order: the order of systems is what the figures are about.
        """
        theirs = {bar: self.theirs[bar] for bar in among}
        losses = {
            point: mean(abs(log(ours[bar] / seconds)) for bar, seconds in theirs.items())
            for point, ours in self.ours.items()
        }
        most = (1 + _NEXT_TO) * min(losses.values())
        near = [point for point, loss in losses.items() if loss <= most]
        return min(near, key=lambda point: (-self._in_order(point, theirs), losses[point]))

    def _in_order(self, point: Constants, theirs: Seconds) -> int:
        return sum(in_order(self.ours[point], theirs, tie=TIE).values())

    def most_in_order(self) -> tuple[int, int]:
        """Return the most judged groups in the published order at any point, and but for ties."""
        most = [0, 0]
        for ours in self.ours.values():
            for place, tie in enumerate((1.0, TIE)):
                found = in_order(ours, self.theirs, tie=tie)
                most[place] = max(
                    most[place], sum(found[each] for each in found if is_judged(each))
                )
        return most[0], most[1]

    def left_out(self) -> list[Row]:
        """Return the errors of each condition, figure and model with the constants of all others.

        A figure is a kind of cluster: hosts of one device, one host, two limited hosts.
        """
        keys: list[Callable[[Bar], str]] = [
            lambda bar: f"figure {bar.figure}, {bar.condition}",
            lambda bar: f"figure {bar.figure}",
            lambda bar: bar.model,
        ]
        return [
            self._without(key, name)
            for key in keys
            for name in dict.fromkeys(map(key, self.theirs))
        ]

    def _without(self, key: Callable[[Bar], str], name: str) -> Row:
        out = [bar for bar in self.theirs if key(bar) == name]
        point = self.best(bar for bar in self.theirs if key(bar) != name)
        off = {bar: self.ours[point][bar] / self.theirs[bar] - 1 for bar in out}
        worst = max(out, key=lambda bar: abs(off[bar]))
        return {
            "left out": name,
            "bars": len(out),
            "TFLOP/s": point.flops_per_s / 1e12,
            "efficiency": point.efficiency,
            "spread": point.spread,
            "median error": f"{median(map(abs, off.values())):.1%}",
            "worst": f"{off[worst]:+.1%}",
            "worst bar": f"{worst.condition}, {worst.model}, {worst.system}",
        }


def _seconds(
    bar: Bar, point: Constants, strategies: dict[Bar, tuple[OperatorDecision, ...]]
) -> float:
    work = workload(bar, point)
    if bar.system is not System.HIDUP:
        return predicted_step_s(bar.system, work)
    model = work.model(RoutingGroup.SEQUENCE, halves=2, overlaps_backward=False)
    if bar not in strategies:
        strategies[bar] = search(model).strategy
    return step_s(model, strategies[bar])
