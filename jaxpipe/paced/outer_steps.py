"""The outer loop of a paced run: islands that step apart, and the runtime's own outer exchanges.

::

    island 0   inner step ─ inner step ─┬─ all-reduce of zeros ─┬─ all-gather ─ inner step
    island 1   inner step ─ inner step ─┴─ (inner steps) ───────┴─ all-gather ─ inner step

What is exchanged has the size of the outer gradients. Computing them, and the outer optimizer,
takes no time.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jaxpipe.comm import AllReduceHandle, CountingTransport, Transport, WireFormat
from jaxpipe.outer import OuterAction, OuterConfig, OuterTimetable, fragment_of
from jaxpipe.paced.all_reduces import RuntimeAllReduces
from jaxpipe.paced.reduction import PlannedAllReduces, planned_all_reduces
from jaxpipe.plan import Island, Plan, check_islands, islands_of
from jaxpipe.plan.cost import Profile
from jaxpipe.runtime.outer.outer_buckets import OuterBucket, of_fragment
from jaxpipe.runtime.outer.outer_exchange import OuterExchange
from jaxpipe.simulate import Conditions, StepModel, plan_step

_VALUE = np.dtype(np.float32)
"""Anchors are float32, whatever the dtype of gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandStep:
    """An island, its simulated inner step, and the all-reduces inside it."""

    island: Island
    job: StepModel
    all_reduces: PlannedAllReduces


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOuter:
    """The outer loop of a plan, of which the first `num_steps` inner steps are executed.

    `bucket_bytes` are the bytes of each bucket's vector, of all stages.
    """

    plan: Plan
    islands: tuple[IslandStep, ...]
    timetable: OuterTimetable
    num_steps: int
    bucket_bytes: Mapping[OuterBucket, float]

    def of_rank(self, rank: int) -> IslandStep:
        """Return the island of a rank."""
        (job,) = (island for island in self.islands if rank in island.island.ranks)
        return job


def planned_outer(
    plan: Plan,
    conditions: Conditions,
    outer: OuterConfig,
    *,
    num_steps: int,
    executed: int | None = None,
) -> PlannedOuter:
    """Return the outer loop of a run of `num_steps`, of which the first are `executed`; or all.

    Raises:
        PlanError: the plan has no such islands.
    """
    check_islands(plan, num_islands=outer.islands)
    return PlannedOuter(
        plan=plan,
        islands=tuple(
            IslandStep(
                island=island,
                job=plan_step(island.plan, conditions),
                all_reduces=planned_all_reduces(island.plan, conditions),
            )
            for island in islands_of(plan, num_islands=outer.islands)
        ),
        timetable=OuterTimetable(
            every=outer.every,
            num_fragments=outer.fragments,
            delay=outer.overlap,
            num_steps=num_steps,
        ),
        num_steps=num_steps if executed is None else executed,
        bucket_bytes=_bucket_bytes(plan, conditions.profile, num_fragments=outer.fragments),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSteps:
    """The outer steps of one rank; `sizes` are the values of each of its buckets."""

    exchange: OuterExchange
    timetable: OuterTimetable
    sizes: Mapping[OuterBucket, int]
    _sums: dict[OuterBucket, AllReduceHandle[np.ndarray] | np.ndarray] = field(default_factory=dict)

    def after_step(self, done: int) -> None:
        """Do what is due after `done` inner steps, as the runtime's outer loop does."""
        self.exchange.finish()
        events = self.timetable.events(done)
        is_eager, is_last = self.timetable.is_eager, done == self.timetable.num_steps
        for position, (action, fragment) in enumerate(events):
            if action is OuterAction.SEND:
                self._send(fragment)
                if is_eager and not is_last:
                    self._gather(fragment)
                continue
            self._wait(fragment)
            # An island that is ahead gathers where it sends, and at the end.
            if not is_eager or (OuterAction.SEND, fragment) not in events[position:]:
                self._gather(fragment)
        if any(action is not OuterAction.SEND for action, _ in events):
            self.exchange.sum_over_all(np.zeros(2))

    def close(self, *, timeout_s: float) -> None:
        """End the thread of the sums once all of them, and all messages, are complete."""
        self.exchange.finish()
        self.exchange.reducer.close(timeout_s=timeout_s)

    def _send(self, fragment: int) -> None:
        for bucket in self._stepped(fragment):
            piece = self.exchange.slice_of(bucket, size=self.sizes[bucket])
            self._sums[bucket] = self.exchange.begin(bucket, np.zeros(piece.size, _VALUE))

    def _wait(self, fragment: int) -> None:
        for bucket in self._stepped(fragment):
            self.exchange.wait(self._sums.pop(bucket))

    def _gather(self, fragment: int) -> None:
        slices = {
            bucket: np.zeros(self.exchange.slice_of(bucket, size=self.sizes[bucket]).size, _VALUE)
            for bucket in self._stepped(fragment)
        }
        for bucket in of_fragment(self.sizes, fragment):
            self.exchange.whole(bucket, slices, size=self.sizes[bucket])

    def _stepped(self, fragment: int) -> list[OuterBucket]:
        """Return the buckets for which this rank takes outer steps."""
        size = of_fragment(self.sizes, fragment)
        return [bucket for bucket in size if bucket.stage == 0 or not bucket.is_tied]


def outer_steps(
    planned: PlannedOuter,
    *,
    inside: Transport,
    everyone: Transport,
    reducer: RuntimeAllReduces,
    wire: WireFormat,
    sizes: Mapping[OuterBucket, int],
    timeout_s: float,
) -> OuterSteps:
    """Return the outer steps of a rank of all ranks; `sizes` are the values of all buckets."""
    island = planned.of_rank(everyone.rank).island
    stages_here = island.plan.stages(inside.rank)
    return OuterSteps(
        exchange=OuterExchange(
            island=island,
            inside=inside,
            everyone=everyone,
            between=CountingTransport(everyone),
            reducer=reducer,
            wire=wire,
            sync_all=planned.plan.sync_all,
            num_fragments=planned.timetable.num_fragments,
            timeout_s=timeout_s,
        ),
        timetable=planned.timetable,
        sizes={bucket: size for bucket, size in sizes.items() if bucket.stage in stages_here},
    )


def _bucket_bytes(plan: Plan, profile: Profile, *, num_fragments: int) -> dict[OuterBucket, float]:
    """Return the bytes of each bucket; of a tied embedding the first and the last stage have one.

    All replicas have the same partition.
    """
    values: defaultdict[OuterBucket, float] = defaultdict(float)
    last, shares = plan.pipelines[0].num_stages - 1, plan.shares_embedding
    values[OuterBucket(0, 0, is_tied=shares)] += profile.embed.num_changing
    values[OuterBucket(last, 0)] += profile.head.num_changing
    if shares:
        values[OuterBucket(last, 0, is_tied=True)] = profile.embed.num_changing
    for stage in range(last + 1):
        for layer in plan.layers(stage):
            fragment = fragment_of(f"blocks.{layer}", num_fragments=num_fragments)
            values[OuterBucket(stage, fragment)] += profile.layers[layer].num_changing
    return {bucket: _VALUE.itemsize * n for bucket, n in sorted(values.items()) if n}
