"""The outer loop of one rank: anchor and momentum of its slices, and the outer steps in between.

::

    inner step ─ inner step ─ ... ─ inner step ─┬─ send: anchor - local, all-reduce ─┐
                                                │   (inner steps, with a delay)      │
    local <- alpha local + (1 - alpha) anchor ──┴── apply: Nesterov, all-gather ◄────┘

Anchor and momentum are in host memory, float32, divided over the replicas of an island. They are
the same on all islands, bit for bit.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from jaxpipe.comm import AllReduceHandle
from jaxpipe.outer import (
    OuterAction,
    OuterConfig,
    OuterOptimizer,
    OuterState,
    OuterTimetable,
    mean_step,
    mixed,
    outer_gradient,
    outer_step,
)
from jaxpipe.runtime.checkpoint import flatten, restore
from jaxpipe.runtime.outer.outer_buckets import BucketLayout, OuterBucket, of_fragment
from jaxpipe.runtime.outer.outer_exchange import OuterExchange
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.step.worker import Worker

_Tensors = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterEnd:
    """The end of an outer step: over all ranks, the bytes between islands and the stop requests."""

    num_bytes: int
    stops: float


class OuterLoop:
    """The outer loop of one rank; `states` has the slices for which it takes the steps.

    `sums` are those under way, begun or complete, by bucket; `in_flight` are their fragments, equal
    on all ranks, also on those without a bucket of them. All ranks call each method after the same
    inner steps.
    """

    def __init__(
        self,
        worker: Worker,
        exchange: OuterExchange,
        *,
        layouts: Mapping[OuterBucket, BucketLayout],
        states: dict[OuterBucket, OuterState],
        sums: Mapping[OuterBucket, np.ndarray],
        in_flight: Collection[int],
    ) -> None:
        self.worker = worker
        self.exchange = exchange
        self.layouts = layouts
        self.states = states
        self.sums: dict[OuterBucket, AllReduceHandle[np.ndarray] | np.ndarray] = {**sums}
        self.timetable = timetable_of(self.config, num_steps=worker.whole.train.steps)
        self.in_flight = set(in_flight)
        self._num_bytes_before = exchange.between.num_bytes_sent

    @property
    def config(self) -> OuterConfig:
        """The section `[outer]`."""
        return self.worker.whole.outer

    def is_in_sync(self, done: int) -> bool:
        """Return whether the local parameters are the anchor after `done` inner steps."""
        is_last = done == self.timetable.num_steps
        keeps_none = is_last or self.config.local_fraction == 0
        return keeps_none and self.timetable.is_in_sync(done)

    def after_step(
        self, state: TrainState, *, done: int, stops: float
    ) -> tuple[TrainState, OuterEnd | None]:
        """Do what is due after `done` inner steps; return the end of an outer step, if one ended.

        `stops` counts the ranks of this island that were asked to stop.
        """
        events = self.timetable.events(done)
        if not events:
            return state, None
        tensors = {stage: self._tensors(state, stage) for stage in state.stages}
        kept = 0.0 if done == self.timetable.num_steps else self.config.local_fraction
        has_ended = False
        for action, fragment in events:
            if action is OuterAction.SEND:
                self._send(fragment, tensors)
            elif fragment in self.in_flight:  # not in a run that was extended after its end
                self._apply(fragment, action, tensors, kept=kept)
                has_ended = True
        if not has_ended:
            return state, None
        return self._with(state, tensors), self._end(stops)

    def anchored(self, state: TrainState, *, done: int) -> TrainState:
        """Return the state with the anchor as its parameters: what is evaluated, and exported."""
        if self.is_in_sync(done):
            return state
        tensors: dict[int, _Tensors] = {stage: {} for stage in state.stages}
        for bucket, layout in self.layouts.items():
            tensors[bucket.stage] |= layout.unpack(self.whole_anchor(bucket))
        return self._with(state, tensors)

    def eval_loss(self, state: TrainState, *, done: int) -> float:
        """Return the held-out loss of the anchor over all islands, the same on all ranks."""
        own = self.worker.eval_sums(self.anchored(state, done=done))
        # Of each island once: by its first rank.
        is_first = self.worker.transport.rank == 0
        sums = self.exchange.sum_over_all(np.array(own if is_first else (0.0, 0.0)))
        return float(sums[0] / max(sums[1], 1.0))

    def settled_sums(self) -> dict[OuterBucket, np.ndarray]:
        """Return the sums under way, once they are complete; they are applied when they are due."""
        settled = {bucket: self.exchange.wait(begun) for bucket, begun in self.sums.items()}
        self.sums = {**settled}
        return settled

    def whole_anchor(self, bucket: OuterBucket) -> np.ndarray:
        """Return the anchor of a bucket from all replicas of the island, in fresh memory."""
        slices = {each: state.anchor for each, state in self.states.items()}
        return self.exchange.whole(bucket, slices, size=self.layouts[bucket].size)

    def close(self, *, timeout_s: float) -> None:
        """End the threads that sum outer gradients.

        Raises:
            DeadlineError: a thread did not end in time.
        """
        self.exchange.reducer.close(timeout_s=timeout_s)

    def _send(self, fragment: int, tensors: Mapping[int, _Tensors]) -> None:
        weight = self.worker.part.island.share
        for bucket in of_fragment(self.states, fragment):
            layout = self.layouts[bucket]
            own = self.exchange.slice_of(bucket, size=layout.size)
            local = layout.pack(tensors[bucket.stage])[own.start : own.stop]
            gradient = outer_gradient(self.states[bucket].anchor, local, weight=weight)
            self.sums[bucket] = self.exchange.begin(bucket, gradient)
        self.in_flight.add(fragment)

    def _apply(
        self,
        fragment: int,
        action: OuterAction,
        tensors: Mapping[int, _Tensors],
        *,
        kept: float,
    ) -> None:
        optimizer = OuterOptimizer(
            learning_rate=self.config.learning_rate, momentum=self.config.momentum
        )
        for bucket in of_fragment(self.states, fragment):
            total, state = self.exchange.wait(self.sums.pop(bucket)), self.states[bucket]
            averages = action is OuterAction.AVERAGE
            after = mean_step(state, total) if averages else outer_step(state, total, optimizer)
            self.states[bucket] = after
        for bucket in of_fragment(self.layouts, fragment):
            layout, of_stage = self.layouts[bucket], tensors[bucket.stage]
            anchor = self.whole_anchor(bucket)
            local = layout.pack(of_stage)
            of_stage.update(layout.unpack(mixed(local, anchor, local_fraction=kept)))
        self.in_flight.discard(fragment)

    def _end(self, stops: float) -> OuterEnd:
        sent = self.exchange.between.num_bytes_sent
        since, self._num_bytes_before = sent - self._num_bytes_before, sent
        is_first = self.worker.transport.rank == 0
        own = np.array([since, stops if is_first else 0.0])
        num_bytes, all_stops = self.exchange.sum_over_all(own)
        return OuterEnd(num_bytes=int(num_bytes), stops=float(all_stops))

    def _tensors(self, state: TrainState, stage: int) -> _Tensors:
        return flatten(state.stages[stage].params, first_layer=self._first_layer(stage))

    def _with(self, state: TrainState, tensors: Mapping[int, _Tensors]) -> TrainState:
        """Return the state with these tensors as the parameters of all its stages."""
        stages = {}
        for stage, trained in state.stages.items():
            found = restore(trained.params, tensors[stage], first_layer=self._first_layer(stage))
            # Every leaf becomes an array of its own: the next step donates them.
            params = self.worker.calls[stage].spec.layout.place(found)
            stages[stage] = StageState(params=params, moments=trained.moments)
        return replace(state, stages=stages)

    def _first_layer(self, stage: int) -> int:
        return first_layer(self.worker, stage)


def first_layer(worker: Worker, stage: int) -> int:
    """Return the number of the first layer of a stage of a rank."""
    plan = worker.job.plan
    return plan.layers(stage, replica=plan.replica(worker.transport.rank)).start


def timetable_of(config: OuterConfig, *, num_steps: int) -> OuterTimetable:
    """Return the timetable of the section `[outer]`."""
    return OuterTimetable(
        every=config.every,
        num_fragments=config.fragments,
        delay=config.delay,
        num_steps=num_steps,
    )
