"""Simulated seconds of an outer loop: inner steps of islands, and outer steps between them.

::

    inner step          the slowest island's step, without any message to the others
    outer step          all slices at once: all-reduce across islands, all-gather within each
    exposed by delay    sum over fragments of max(0, outer step / fragments - delay * inner step)
    a step on average   inner step + exposed / H

Fragments are taken as equal parts of an outer step, and each is hidden behind `delay` inner steps:
what inner messages and outer ones lose to each other on a link is not simulated.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jaxpipe.collective import (
    AllReduceKind,
    Collective,
    Transfer,
    all_gather_transfers,
    all_reduce_transfers,
)
from jaxpipe.collective.codec_bytes import bytes_per_value
from jaxpipe.collective.sync_tree import flat
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import Island, Plan, check_islands, island_of
from jaxpipe.schedule import Bucket
from jaxpipe.simulate.choose_all_reduce import MOST_CHUNKS, reductions_s
from jaxpipe.simulate.plan_step import Conditions, plan_step_s, segment_bytes

_VALUE_BYTES = 4
"""Anchors are float32, whatever the dtype of gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterTimes:
    """The simulated seconds of an inner step and of an outer one, if nothing overlaps."""

    inner_s: float
    outer_s: float

    def exposed_s(self, outer: OuterConfig) -> float:
        """Return the seconds of an outer step that no inner step hides.

        >>> times = OuterTimes(inner_s=2.0, outer_s=5.0)
        >>> times.exposed_s(OuterConfig(islands=2, every=30, delay=2))
        1.0
        """
        each_s = self.outer_s / outer.fragments
        return outer.fragments * max(0.0, each_s - outer.delay * self.inner_s)

    def step_s(self, outer: OuterConfig) -> float:
        """Return the seconds of a step on average.

        >>> times = OuterTimes(inner_s=2.0, outer_s=5.0)
        >>> times.step_s(OuterConfig(islands=2, every=50))
        2.1
        """
        return self.inner_s + self.exposed_s(outer) / outer.every


def outer_times(plan: Plan, conditions: Conditions, outer: OuterConfig) -> OuterTimes:
    """Return the seconds of the steps of a plan with an outer loop.

    Raises:
        PlanError: the plan has no such islands.
    """
    check_islands(plan, num_islands=outer.islands)
    islands = islands_of(plan, num_islands=outer.islands)
    return OuterTimes(
        inner_s=max(plan_step_s(each.plan, conditions) for each in islands),
        outer_s=outer_step_s(plan, conditions, outer),
    )


def islands_of(plan: Plan, *, num_islands: int) -> tuple[Island, ...]:
    """Return the islands of a plan, by their number."""
    found = (island_of(plan, rank=rank, num_islands=num_islands) for rank in range(plan.num_ranks))
    return tuple({each.number: each for each in found}.values())


def outer_step_s(plan: Plan, conditions: Conditions, outer: OuterConfig) -> float:
    """Return the seconds of one outer step of all fragments, if all ranks begin it at once."""
    if outer.islands == 1:
        return 0.0
    islands = islands_of(plan, num_islands=outer.islands)
    values = segment_bytes(plan, conditions.profile, gradient_bytes=1)
    ratio = bytes_per_value(outer.codec, top_k_fraction=outer.top_k_fraction)
    across = [_across(islands, stage, ratio * n) for stage, n in enumerate(values)]
    within = [_within(islands, stage, _VALUE_BYTES * n) for stage, n in enumerate(values)]
    return sum(
        reductions_s(plan, conditions.cluster, {Bucket.STAGE: tuple(each)}, conditions.overheads)
        for each in (across, within)
        if any(each)
    )


def _across(islands: tuple[Island, ...], stage: int, num_bytes: float) -> Collective:
    """Return the all-reduces of a stage: of the slice of each replica with its counterparts."""
    first = islands[0]
    slices = [
        first.counterparts[first.plan.rank(replica=replica, stage=stage)]
        for replica in range(first.plan.num_replicas)
    ]
    chunk_bytes = num_bytes / len(slices) / MOST_CHUNKS
    return _joined(
        all_reduce_transfers(
            AllReduceKind.HIERARCHICAL,
            flat(ranks),
            num_bytes=num_bytes / len(slices),
            chunk_bytes=max(1.0, chunk_bytes),
        )
        for ranks in slices
    )


def _within(islands: tuple[Island, ...], stage: int, num_bytes: float) -> Collective:
    """Return the all-gathers of a stage's new anchor, one within each island."""
    return _joined(
        all_gather_transfers(
            [
                island.ranks.start + island.plan.rank(replica=replica, stage=stage)
                for replica in range(island.plan.num_replicas)
            ],
            num_bytes=num_bytes,
        )
        for island in islands
        if island.plan.num_replicas > 1
    )


def _joined(collectives: Iterable[Collective]) -> Collective:
    """Return collectives of disjoint ranks as one."""
    joined: list[Transfer] = []
    for each in collectives:
        first = len(joined)
        joined += [replace(t, after=tuple(first + n for n in t.after)) for t in each]
    return tuple(joined)
