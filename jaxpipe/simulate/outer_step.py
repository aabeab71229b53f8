"""Simulated seconds of an outer loop: inner steps of islands, and outer steps between them.

::

    inner step          the slowest island's step, without any message to the others
    across              all-reduces of all slices between islands, at once
    within              all-gathers of the new anchor, one within each island, and then the tied
                        embedding, from the first stage to the last
    meet                the sum of scalars over all ranks that ends the outer step of a fragment
    exposed             within + F meet + sum over F fragments of max(0, across / F - delay * inner)
    a step on average   inner step + exposed / H

Fragments are taken as equal parts of an outer step. Only what lies between islands overlaps with
inner steps; what the messages of both lose to each other on a link is not simulated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from jaxpipe.collective import (
    AllReduceKind,
    Collective,
    Transfer,
    all_gather_transfers,
    all_reduce_transfers,
)
from jaxpipe.collective.codec.codecs import bytes_per_value
from jaxpipe.collective.sync_tree import flat
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import Island, Plan, check_islands, islands_of
from jaxpipe.schedule import Bucket
from jaxpipe.simulate.choose_all_reduce import MOST_CHUNKS, reductions_s
from jaxpipe.simulate.plan_step import Conditions, plan_step, plan_step_s

_VALUE_BYTES = 4
"""Anchors are float32, whatever the dtype of gradients."""


_SCALARS_BYTES = 16
"""Two float64: the bytes sent, and the requests to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterTimes:
    """The simulated seconds of an inner step and of the parts of an outer one, without overlap."""

    inner_s: float
    across_s: float
    within_s: float = 0.0
    meet_s: float = 0.0

    @property
    def outer_s(self) -> float:
        """The seconds of an outer step of one fragment that nothing hides."""
        return self.across_s + self.within_s + self.meet_s

    def exposed_s(self, outer: OuterConfig) -> float:
        """Return the seconds of the outer steps of all fragments that no inner step hides.

        >>> times = OuterTimes(inner_s=2.0, across_s=5.0, within_s=0.5)
        >>> times.exposed_s(OuterConfig(islands=2, every=30, delay=2))
        1.5
        """
        each_s = max(0.0, self.across_s / outer.fragments - outer.overlap * self.inner_s)
        return self.within_s + outer.fragments * (each_s + self.meet_s)

    def step_s(self, outer: OuterConfig) -> float:
        """Return the seconds of a step on average.

        >>> times = OuterTimes(inner_s=2.0, across_s=4.0, within_s=0.5, meet_s=0.5)
        >>> times.step_s(OuterConfig(islands=2, every=50))
        2.1
        """
        return self.inner_s + self.exposed_s(outer) / outer.every


def mean_step_s(
    plan: Plan,
    conditions: Conditions,
    *,
    step_s: Callable[[Plan, Conditions], float] = plan_step_s,
) -> float:
    """Return the seconds of a step; with an outer loop, of an inner one and its part of outer ones.

    `step_s` returns those of one step without an outer loop.

    Raises:
        PlanError: the plan has no such islands.
    """
    outer = conditions.outer
    if outer is None:
        return step_s(plan, conditions)
    return outer_times(plan, conditions, outer, step_s=step_s).step_s(outer)


def slowest_island(plan: Plan, conditions: Conditions) -> Plan:
    """Return the plan of the island whose inner steps take longest; without a loop, the plan."""
    if conditions.outer is None:
        return plan
    islands = islands_of(plan, num_islands=conditions.outer.islands)
    return max((island.plan for island in islands), key=lambda plan: plan_step_s(plan, conditions))


def outer_times(
    plan: Plan,
    conditions: Conditions,
    outer: OuterConfig,
    *,
    step_s: Callable[[Plan, Conditions], float] = plan_step_s,
) -> OuterTimes:
    """Return the seconds of the steps of a plan with an outer loop.

    `step_s` returns those of the inner step of an island.

    Raises:
        PlanError: the plan has no such islands.
    """
    check_islands(plan, num_islands=outer.islands)
    islands = islands_of(plan, num_islands=outer.islands)
    outer_step = _outer_step(plan, islands, conditions, outer)

    def seconds(collectives: Mapping[Bucket, tuple[Collective, ...]]) -> float:
        if not any(map(any, collectives.values())):
            return 0.0
        return reductions_s(plan, conditions.cluster, collectives, conditions.overheads)

    within_s = seconds({Bucket.STAGE: outer_step.within})
    return OuterTimes(
        inner_s=max(step_s(each.plan, conditions) for each in islands),
        across_s=seconds({Bucket.STAGE: outer_step.across}),
        within_s=within_s + seconds({Bucket.TIED: outer_step.handed_on}),
        meet_s=seconds({Bucket.SCALARS: outer_step.meet}),
    )


def mean_messages(plan: Plan, conditions: Conditions) -> Iterator[tuple[int, int, float]]:
    """Yield the devices of sender and receiver, and the bytes, of each message of a step.

    With an outer loop these are the messages of the inner steps of all islands, and those of an
    outer step with their part of the bytes, 1 / H.

    Raises:
        PlanError: the plan has no such islands.
    """
    outer = conditions.outer
    if outer is None:
        yield from _messages(plan, conditions)
        return
    check_islands(plan, num_islands=outer.islands)
    islands = islands_of(plan, num_islands=outer.islands)
    for island in islands:
        yield from _messages(island.plan, conditions)
    outer_step = _outer_step(plan, islands, conditions, outer)
    of_stages = (*outer_step.across, *outer_step.within)
    meetings = outer_step.meet * outer.fragments
    for transfer in chain(*of_stages, *outer_step.handed_on, *meetings):
        source, destination = plan.device(transfer.source), plan.device(transfer.destination)
        yield source, destination, transfer.num_bytes / outer.every


def _messages(plan: Plan, conditions: Conditions) -> Iterator[tuple[int, int, float]]:
    step = plan_step(plan, conditions)
    for source, destination, num_bytes in step.all_messages():
        yield step.device(source), step.device(destination), num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _OuterStep:
    """The collectives of an outer step, as the heading of this module names them."""

    across: tuple[Collective, ...]
    within: tuple[Collective, ...]
    handed_on: tuple[Collective, ...]
    meet: tuple[Collective, ...]


def _outer_step(
    plan: Plan, islands: tuple[Island, ...], conditions: Conditions, outer: OuterConfig
) -> _OuterStep:
    profile, cut = conditions.profile, plan.pipelines[0].cut
    values = [profile.stage(cut, stage).num_changing for stage in range(len(cut))]
    ratio = bytes_per_value(outer.codec, top_k_fraction=outer.top_k_fraction)
    stages = list(enumerate(values)) if len(islands) > 1 else []
    embed_bytes = _VALUE_BYTES * profile.embed.num_changing
    return _OuterStep(
        across=tuple(_across(islands, stage, ratio * n) for stage, n in stages),
        within=tuple(_within(islands, stage, _VALUE_BYTES * n) for stage, n in enumerate(values)),
        handed_on=_handed_on(plan, embed_bytes) if plan.shares_embedding else (),
        meet=(_meeting(plan),),
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


def _handed_on(plan: Plan, num_bytes: float) -> tuple[Collective, ...]:
    """Return the messages of the tied embedding, from the first to the last stage of a replica."""
    ends = [
        (plan.rank(replica=replica, stage=0), plan.rank(replica=replica, stage=last))
        for replica, last in enumerate(each.num_stages - 1 for each in plan.pipelines)
    ]
    return tuple(
        (Transfer(source=first, destination=last, num_bytes=num_bytes),)
        for first, last in ends
        if first != last
    )


def _meeting(plan: Plan) -> Collective:
    """Return the sum of scalars over all ranks."""
    return all_reduce_transfers(
        AllReduceKind.TREE, plan.sync_all, num_bytes=_SCALARS_BYTES, chunk_bytes=_SCALARS_BYTES
    )


def _joined(collectives: Iterable[Collective]) -> Collective:
    """Return collectives of disjoint ranks as one."""
    joined: list[Transfer] = []
    for each in collectives:
        first = len(joined)
        joined += [replace(t, after=tuple(first + n for n in t.after)) for t in each]
    return tuple(joined)
