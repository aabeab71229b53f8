"""Pipelines that may follow those of a running plan, on the devices that are there now.

::

    running       0 1 2      lost: 4      dropped       0 1 2
                  3 4 5                   shortened     0 1 2 | 3 5
                  6 7 8      (9 is back)  filled        0 1 2 | 3 9 5 | 6 7 8
                                          even          0 1 | 2 3 | 5 6 | 7 8, and all other lengths

Whole pipelines keep their devices, their partition and so their state. Shares of the batch are in
proportion to the speed of the slowest stage. A rank of several devices counts as the one that sends
and receives its messages, which is as fast as all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from operator import mul
from types import MappingProxyType

import numpy as np

from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.partition import Cut, even_partition
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.balance import balanced_cut
from jaxpipe.search.generators.unlike import proportional

Row = tuple[int, ...]
"""The devices of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """A running plan, the `devices` that are there now, and what their computes take.

    `slow[device]` is the factor by which a device is slower than that of the profile. `peers` are
    the further devices of a rank, by the one that sends and receives its messages: that one alone
    is among `devices`, and `slow` counts all of them. With `schedule`, the plans that follow have
    that one, and a stage on each rank, in place of the running plan's.
    """

    running: Plan
    devices: tuple[int, ...]
    profile: Profile
    slow: np.ndarray
    peers: Mapping[int, Row] = field(default_factory=lambda: MappingProxyType({}))
    schedule: ScheduleKind | None = None

    @property
    def num_chunks(self) -> int:
        """The stages of each rank of the plans that follow."""
        return self.running.num_chunks if self.schedule is None else 1

    @property
    def whole(self) -> tuple[Pipeline, ...]:
        """The running pipelines that have lost no device."""
        there = set(self.devices)
        return tuple(each for each in self.running.pipelines if there.issuperset(each.devices))

    @property
    def broken(self) -> tuple[Pipeline, ...]:
        """The running pipelines that have lost a device."""
        there = set(self.devices)
        return tuple(each for each in self.running.pipelines if not there.issuperset(each.devices))

    @property
    def spare(self) -> Row:
        """The devices without a rank in the running plan."""
        used = {device for row in self.running.placement for device in row}
        return tuple(device for device in self.devices if device not in used)


def candidates(remaining: Remaining) -> Iterator[tuple[Pipeline, ...]]:
    """Yield pipelines that may follow, each once; not all of them fit the model or the batch."""
    seen: set[tuple[Pipeline, ...]] = set()
    for microbatch in _microbatches(remaining):
        total = remaining.running.batch // microbatch
        for rows in (*_kept(remaining), *_even(remaining, total)):
            if not 0 < len(rows) <= total:
                continue
            for counts in _counts(remaining, rows, total):
                pipelines = _with_shares(remaining, rows, counts, microbatch)
                if pipelines not in seen:
                    seen.add(pipelines)
                    yield pipelines


def _microbatches(remaining: Remaining) -> list[int]:
    """Return the sizes of microbatches of all replicas: those of the running ones that fit."""
    sizes = {pipeline.microbatch for pipeline in remaining.running.pipelines}
    fitting = {size for size in sizes if remaining.running.batch % size == 0}
    return sorted(fitting | {gcd(*sizes)}, reverse=True)


_Rows = list[tuple[Row, Cut]]
"""Devices and partition of each pipeline."""


def _kept(remaining: Remaining) -> Iterator[_Rows]:
    """Yield pipelines of which the whole ones stay as they are."""
    whole = [(each.devices, _cut_of(remaining, each)) for each in remaining.whole]
    there = set(remaining.devices)
    yield whole
    shortened = [tuple(d for d in each.devices if d in there) for each in remaining.broken]
    yield whole + [_balanced(remaining, row) for row in shortened if _has_layers(remaining, row)]
    filled, left = _filled(remaining)
    yield whole + filled
    length = remaining.running.pipelines[0].num_ranks
    more = [left[at : at + length] for at in range(0, len(left), length)]
    full = [_balanced(remaining, row) for row in more if len(row) == length]
    yield whole + filled + full
    yield (
        whole + filled + [_balanced(remaining, row) for row in more if _has_layers(remaining, row)]
    )


def _filled(remaining: Remaining) -> tuple[_Rows, Row]:
    """Return broken pipelines whose holes have other devices, and the devices that are left.

    They come from the spare devices, then from the pipelines that have lost most.
    """
    there = set(remaining.devices)
    spare = list(remaining.spare)
    # The pipelines with the fewest holes first: the last ones may have to give.
    broken = sorted(remaining.broken, key=lambda each: len(set(each.devices) - there))
    rows: _Rows = []
    while broken:
        each = broken.pop(0)
        holes = [device for device in each.devices if device not in there]
        while len(spare) < len(holes) and broken:
            spare += [device for device in broken.pop().devices if device in there]
        if len(spare) < len(holes):
            spare = [device for device in each.devices if device in there] + spare
            break
        taken = dict(zip(holes, spare, strict=False))
        spare = spare[len(holes) :]
        row = tuple(taken.get(device, device) for device in each.devices)
        rows.append((row, _cut_of(remaining, each)))
    return rows, tuple(spare)


def _even(remaining: Remaining, num_microbatches: int) -> Iterator[_Rows]:
    """Yield pipelines of equal lengths, of all lengths, on the devices in their order."""
    devices = remaining.devices
    longest = remaining.running.num_layers // remaining.num_chunks
    for length in range(1, min(len(devices), longest) + 1):
        most = min(len(devices) // length, num_microbatches)
        divisors = [count for count in range(1, most + 1) if num_microbatches % count == 0]
        cut = _cut(remaining, length)
        for count in sorted({most, divisors[-1], 1}, reverse=True):
            yield [(devices[at * length : (at + 1) * length], cut) for at in range(count)]


def _cut(remaining: Remaining, length: int) -> Cut:
    """Return the partition of a pipeline: that of a running one of this length, or an even one."""
    for each in remaining.running.pipelines:
        if each.num_ranks == length:
            return _cut_of(remaining, each)
    return even_partition(
        num_layers=remaining.running.num_layers,
        num_stages=length * remaining.num_chunks,
    )


def _cut_of(remaining: Remaining, pipeline: Pipeline) -> Cut:
    """Return the partition of a running pipeline, or a balanced one if ranks have fewer stages."""
    if remaining.num_chunks == remaining.running.num_chunks:
        return pipeline.cut
    return _balanced(remaining, pipeline.devices)[1]


def _balanced(remaining: Remaining, row: Row) -> tuple[Row, Cut]:
    """Return a pipeline with the partition that suits its devices."""
    slow = np.tile(remaining.slow[list(row)], remaining.num_chunks)
    return row, balanced_cut(remaining.profile, slow)


def _has_layers(remaining: Remaining, row: Row) -> bool:
    """Return whether a pipeline of these devices has a layer for each stage."""
    return 0 < len(row) * remaining.num_chunks <= remaining.running.num_layers


def _counts(remaining: Remaining, rows: _Rows, total: int) -> Iterator[tuple[int, ...]]:
    """Yield the microbatches of pipelines: equal ones, and in proportion to their speeds."""
    if total % len(rows) == 0:
        yield (total // len(rows),) * len(rows)
    yield proportional(total, [1 / seconds for seconds in slowest_s(remaining, rows)])


def _with_shares(
    remaining: Remaining, rows: _Rows, counts: Sequence[int], microbatch: int
) -> tuple[Pipeline, ...]:
    """Return the pipelines of some microbatches each.

    A warm-up and the codecs of boundaries fit one number of stages: a pipeline has those of a
    running one with as many, preferably of the one on its devices, else none.
    """
    running = remaining.running.pipelines if remaining.schedule is None else ()
    # Reversed: of several with as many stages the first counts.
    by_stages = {each.num_stages: each for each in reversed(running)}
    by_devices = {each.devices: each for each in running}
    parts = _data_parts(remaining.running)
    pipelines: list[Pipeline] = []
    for (row, cut), count in zip(rows, counts, strict=True):
        like = by_devices.get(row) or by_stages.get(len(cut))
        like = like if like is not None and like.num_stages == len(cut) else None
        pipelines.append(
            Pipeline(
                devices=row,
                cut=cut,
                num_microbatches=count,
                microbatch=microbatch,
                warmup=None if like is None else like.warmup,
                peers=tuple(remaining.peers.get(device, ()) for device in row),
                codecs=() if like is None else like.codecs,
                data_parts=tuple(
                    parts.get((device, *remaining.peers.get(device, ())), 1) for device in row
                ),
            )
        )
    return tuple(pipelines)


def _data_parts(plan: Plan) -> dict[Row, int]:
    """Return the data parts of each group of devices that divides samples."""
    return {
        group: parts
        for pipeline in plan.pipelines
        for group, parts in zip(pipeline.groups, pipeline.data_parts, strict=False)
    }


def slowest_s(remaining: Remaining, rows: Sequence[tuple[Row, Cut]]) -> list[float]:
    """Return the seconds of a microbatch on the slowest rank of each pipeline."""
    # Once for each partition: hundreds of pipelines have the same.
    num_ranks = {cut: len(row) for row, cut in rows}
    by_cut = {cut: _ranks_s(remaining.profile, cut, num) for cut, num in num_ranks.items()}
    return [
        # A model without costs: any share is as good as the other.
        max(map(mul, by_cut[cut], remaining.slow[list(row)].tolist())) or 1.0
        for row, cut in rows
    ]


def _ranks_s(profile: Profile, cut: Cut, num_ranks: int) -> tuple[float, ...]:
    """Return the seconds of a microbatch on each rank of a pipeline of profiled devices."""
    seconds = [0.0] * num_ranks
    for stage in range(len(cut)):
        part = profile.stage(cut, stage)
        seconds[stage % num_ranks] += part.forward_s + part.backward_s
    return tuple(seconds)
