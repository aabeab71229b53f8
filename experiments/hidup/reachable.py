"""How near any model of these systems can come to the published bars.

- `network_rows`: the seconds of the network alone. A bar below it was not run with these samples,
  in float32, over links of the published speed.
- `repeated_rows`: bars that the paper has measured twice, in a figure and in table 4.
- `order_rows`: pairs of systems in a wrong order, and how far apart their published bars are.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from experiments.hidup.accuracy import Seconds, is_judged, published, published_bars
from experiments.hidup.workloads import Bar, fitted, workload
from experiments.table import Row
from jaxpipe.autoshard.duplex import Device
from jaxpipe.autoshard.duplex.systems import System, predicted_step_s

_TABLE_4 = Path(__file__).parent / "published" / "table-4.csv"
_FREE = Device(flops_per_s=1e30)
"""Computes in no time."""


def network_s(bar: Bar, *, sequences: int | None = None) -> float:
    """Return the seconds of a step if everything but the network took no time.

    Collectives have the speed of the published microbenchmark. HiDup has the strategy of our space
    that then is fastest. By default, a device has the samples of the figure.
    """
    work = workload(bar, replace(fitted(), efficiency=1.0))
    if sequences is not None:
        work = replace(work, load=replace(work.load, sequences=sequences))
    system = System.DUPLEX if bar.system is System.HIDUP else bar.system
    return predicted_step_s(system, replace(work, device=_FREE))


def network_rows() -> Iterator[Row]:
    """Yield the bars over slow networks, next to the time of the network alone."""
    for bar, seconds in published().items():
        if bar.figure != 6:
            continue
        whole, half = network_s(bar), network_s(bar, sequences=8)
        yield {
            "condition": bar.condition,
            "model": bar.model,
            "system": bar.system.value,
            "published s": seconds,
            "network alone, 16 samples": f"{whole:.3f}",
            "published / that": f"{seconds / whole:.2f}",
            "network alone, 8 samples": f"{half:.3f}",
        }


def repeated_rows() -> Iterator[Row]:
    """Yield the bars that table 4 of the paper has as well."""
    in_figures = published()
    for bar, seconds in published_bars(_TABLE_4).items():
        yield {
            "figure": bar.figure,
            "condition": bar.condition,
            "system": bar.system.value,
            "in the figure, s": in_figures[bar],
            "in table 4, s": seconds,
            "figure / table": f"{in_figures[bar] / seconds:.2f}",
        }


def order_rows(ours: Seconds, theirs: Seconds) -> Iterator[Row]:
    """Yield the pairs of judged groups that we have in another order than the figure."""
    for pair in combinations([bar for bar in theirs if is_judged(bar.group)], 2):
        first, second = sorted(pair, key=lambda bar: theirs[bar])
        if first.group == second.group and ours[first] >= ours[second]:
            yield {
                "figure": first.figure,
                "condition": first.condition,
                "model": first.model,
                "published": f"{first.system.value} < {second.system.value}",
                "by": f"{theirs[second] / theirs[first] - 1:.1%}",
                "ours the other way by": f"{ours[first] / ours[second] - 1:.1%}",
            }
