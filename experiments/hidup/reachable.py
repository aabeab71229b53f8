"""How near any model of these systems can come to the published bars.

- `network_rows`: the seconds of the network alone. A bar below it was not run with these samples,
  in float32, over links of the published speed.
- `repeated_rows`: bars that the paper has measured twice, in a figure and in table 4.
- `variant_rows`: other assumptions under the same constants, and what they change.
- `bucket_rows`: figure 8 with the rate and the bucket that its authors gave to `tc`.
- `order_rows`: pairs of systems in a wrong order, and how far apart their published bars are.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from statistics import median

from experiments.hidup.accuracy import (
    TIE,
    Seconds,
    errors,
    in_order,
    is_judged,
    published,
    published_bars,
)
from experiments.hidup.workloads import Bar, fitted, workload
from experiments.table import Row
from jaxpipe.baselines.autoshard.duplex import DeviceSpeed, published_profiles, search, step_s
from jaxpipe.baselines.autoshard.duplex.duplex_systems import DuplexWorkload, predicted_step_s
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingGroup
from jaxpipe.baselines.systems import System
from jaxpipe.topo.token_bucket import TokenBucket, parse_rate, parse_size

_TABLE_4 = Path(__file__).parent / "published" / "table-4.csv"
_FREE = DeviceSpeed(flops_per_s=1e30)
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


def variant_rows() -> Iterator[Row]:
    """Yield errors and orders if both directions overlap, and with 8 samples in figure 6."""
    theirs = published()
    for name, sequences, overlaps_backward in (
        ("HiDup's backward overlaps as well", None, True),
        ("8 samples for each device in figure 6", 8, False),
    ):
        ours = {
            bar: _variant_s(
                bar,
                sequences=sequences if bar.figure == 6 else None,
                overlaps_backward=overlaps_backward,
            )
            for bar in theirs
        }
        off = errors(ours, theirs)
        row: Row = {"variant": name, "median of all bars": f"{median(map(abs, off.values())):.1%}"}
        for model in ("bert", "vit"):
            for system in (System.HIDUP, System.DEEPSPEED_MOE):
                own = [
                    x
                    for bar, x in off.items()
                    if (bar.figure, bar.system) == (6, system) and bar.model.startswith(model)
                ]
                row[f"figure 6, {model}, {system}"] = f"{min(own):+.0%} to {max(own):+.0%}"
        for tie in (1.0, TIE):
            found = in_order(ours, theirs, tie=tie)
            right = sum(found[group] for group in found if is_judged(group))
            row[f"in order, ties of {tie - 1:.0%}"] = str(right)
        yield row


def _variant_s(bar: Bar, *, sequences: int | None, overlaps_backward: bool) -> float:
    """Return a predicted bar; the strategy of HiDup is that of the published cost function."""
    work = workload(bar, fitted())
    if sequences is not None:
        work = replace(work, load=replace(work.load, sequences=sequences))
    if bar.system is not System.HIDUP:
        return predicted_step_s(bar.system, work)
    model = work.model(RoutingGroup.SEQUENCE, halves=2, overlaps_backward=False)
    found = search(model)
    return step_s(replace(model, overlaps_backward=overlaps_backward), found.strategy)


_GROUPS_S = (0.0, 1e-3, 1.25e-3, 1.5e-3)


def group_rows() -> Iterator[Row]:
    """Yield FastMoE's errors with each time of a group of messages, figure by figure.

    A bar is worse if its error is larger than without such a time.
    """
    theirs = {bar: s for bar, s in published().items() if bar.system is System.FASTMOE}
    works = {bar: workload(bar, fitted()) for bar in theirs}
    for figure, group_s in product((6, 7, 8), _GROUPS_S):
        own = {bar: seconds for bar, seconds in theirs.items() if bar.figure == figure}
        off, before = (
            errors(
                {bar: predicted_step_s(bar.system, replace(works[bar], group_s=s)) for bar in own},
                own,
            )
            for s in (group_s, 0.0)
        )
        worse = [bar for bar in own if abs(off[bar]) > abs(before[bar])]
        yield {
            "figure": figure,
            "ms of a group": f"{1e3 * group_s:g}",
            "bars": len(own),
            "median error": f"{median(map(abs, off.values())):.1%}",
            "median signed": f"{median(off.values()):+.1%}",
            "worst": f"{max(off.values(), key=abs):+.1%}",
            "worse than without": ", ".join(f"{b.condition} {b.model}" for b in worse),
        }


_BURST = "60m"
"""The seed's `tc` line: `tbf rate 30gibit latency 60ms burst 60m`."""


def bucket_rows() -> Iterator[Row]:
    """Yield errors and orders of figure 8 with the limit as `tc` sets it, in place of a law.

    Collectives are then as fast as those published without a limit, and what leaves a host has the
    rate of the limit; with a bucket, apart from a burst at the start of each collective.
    """
    theirs = {bar: seconds for bar, seconds in published().items() if bar.figure == 8}
    variants = (
        ("law through 10 and 20 Gb/s", None),
        ("rate", "64k"),
        ("rate, bucket of 20 MiB", "20m"),
        (f"rate, bucket of {_BURST[:-1]} MiB", _BURST),
    )
    for (name, burst), group_s in product(variants, _GROUPS_S[:2]):
        ours = {
            bar: predicted_step_s(bar.system, _with_bucket(bar, burst, group_s=group_s))
            for bar in theirs
        }
        off, found = errors(ours, theirs), in_order(ours, theirs, tie=TIE)
        row: Row = {
            "limit": name,
            "ms of a group": f"{1e3 * group_s:g}",
            "median error": f"{median(map(abs, off.values())):.1%}",
        }
        for system in (System.HIDUP, System.DEEPSPEED_MOE, System.FASTMOE):
            own = [off[bar] for bar in theirs if bar.system is system]
            row[system.value] = f"{min(own):+.0%} to {max(own):+.0%}"
        wrong = [
            f"{condition} {model}" for (_, condition, model), right in found.items() if not right
        ]
        yield {**row, "not in order, but for ties": ", ".join(wrong)}


def _with_bucket(bar: Bar, burst: str | None, *, group_s: float) -> DuplexWorkload:
    work = replace(workload(bar, fitted()), group_s=group_s)
    if burst is None:
        return work
    rate = f"{bar.condition.split(maxsplit=1)[0]}gibit"
    bucket = TokenBucket(bytes_per_s=parse_rate(rate), burst_bytes=parse_size(burst))
    free = published_profiles()["v100-2x4"].scaled(fitted().efficiency)
    return replace(work, profile=replace(free, hosts=work.hosts, bucket=bucket))


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
                "apart, s": f"{theirs[second] - theirs[first]:.3f}",
                "by": f"{theirs[second] / theirs[first] - 1:.1%}",
                "ours the other way by": f"{ours[first] / ours[second] - 1:.1%}",
            }
