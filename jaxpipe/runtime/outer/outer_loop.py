"""The outer loop of one rank: anchor and momentum of its slices, and the outer steps in between.

::

    inner step ─ inner step ─ ... ─ inner step ─┬─ send: anchor - local, all-reduce ─┐
                                                │   (inner steps, with a delay)      │
    local <- alpha local + (1 - alpha) anchor ──┴── apply: Nesterov, all-gather ◄────┘

Parameters that are frozen take no part. Anchor and momentum are in host memory, as exact as
parameters, divided over the replicas of an island. They are the same on all islands, bit for bit.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from jaxpipe.comm import AllReduceHandle
from jaxpipe.outer import (
    EagerState,
    OuterAction,
    OuterConfig,
    OuterOptimizer,
    OuterState,
    OuterTimetable,
    eager_step,
    fresh_lead,
    mean_step,
    mixed,
    outer_gradient,
    outer_step,
)
from jaxpipe.runtime.outer.outer_buckets import BucketLayout, OuterBucket, of_fragment
from jaxpipe.runtime.outer.outer_exchange import OuterExchange
from jaxpipe.runtime.outer.trained_tensors import trained_tensors, with_trained
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.worker import Worker

_Tensors = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterEnd:
    """The end of an outer step: over all ranks, the bytes between islands and the stop requests."""

    num_bytes: int
    stops: float


class OuterLoop:
    """The outer loop of one rank; `states` has the slices for which it takes the steps.

    With eager updates, `leads` has what this island is ahead of the anchor there. `sums` are those
    under way, begun or complete, by bucket; `in_flight` are their fragments, equal on all ranks,
    also on those without a bucket of them. All ranks call each method after the same inner steps.
    """

    def __init__(
        self,
        worker: Worker,
        exchange: OuterExchange,
        *,
        layouts: Mapping[OuterBucket, BucketLayout],
        states: dict[OuterBucket, OuterState],
        leads: Mapping[OuterBucket, EagerState],
        sums: Mapping[OuterBucket, np.ndarray],
        in_flight: Collection[int],
    ) -> None:
        self.worker = worker
        self.exchange = exchange
        self.layouts = layouts
        self.states = states
        self.leads = dict(leads)
        # Where this island has started its round: the anchor may have moved when it is sent.
        self._starts = {bucket: self._start(bucket) for bucket in states}
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
        self.exchange.finish()  # the last stage has it since before this step
        events = self.timetable.events(done)
        if not events:
            return state, None
        tensors = {stage: trained_tensors(self.worker, state, stage) for stage in state.stages}
        has_ended, is_last = False, done == self.timetable.num_steps
        local_fraction = 0.0 if is_last else self.config.local_fraction
        for position, (action, fragment) in enumerate(events):
            if action is OuterAction.SEND:
                # A fragment that is not due moves to the mean of what the islands are.
                from_anchor = is_last and not self.timetable.is_due(fragment, done)
                self._send(fragment, tensors, from_anchor=from_anchor)
                if self.config.eager and not is_last:
                    self._lead(fragment, tensors)
            elif fragment in self.in_flight:  # not in a run that was extended after its end
                self._step(fragment, action)
                has_ended = True
                # An island that is ahead continues from there, and at the end from the anchor.
                ends = (OuterAction.SEND, fragment) not in events[position:]
                if ends or not self.config.eager:
                    self._continue(fragment, tensors, local_fraction=local_fraction)
        if is_last and self.config.eager:
            self.leads = {
                bucket: fresh_lead(anchored.anchor) for bucket, anchored in self.states.items()
            }
            self._starts = {bucket: self._start(bucket) for bucket in self.states}
        if not has_ended and not self.config.eager:
            return state, None
        return with_trained(self.worker, state, tensors), self._end(stops) if has_ended else None

    def anchored(self, state: TrainState, *, done: int) -> TrainState:
        """Return the state with the anchor as its parameters: what is evaluated, and exported."""
        if self.is_in_sync(done):
            return state
        tensors = {stage: trained_tensors(self.worker, state, stage) for stage in state.stages}
        for bucket, layout in self.layouts.items():
            tensors[bucket.stage] |= layout.unpack(self.whole_anchor(bucket))
        return with_trained(self.worker, state, tensors)

    def eval_loss(self, state: TrainState, *, done: int) -> float:
        """Return the held-out loss of the anchor over all islands, the same on all ranks."""
        island_sums = self.worker.eval_sums(self.anchored(state, done=done))
        # Of each island once: by its first rank.
        is_first = self.worker.transport.rank == 0
        sums = self.exchange.sum_over_all(np.array(island_sums if is_first else (0.0, 0.0)))
        return float(sums[0] / max(sums[1], 1.0))

    def settled_sums(self) -> dict[OuterBucket, np.ndarray]:
        """Return the sums under way, once they are complete; they are applied when they are due."""
        settled = {bucket: self.exchange.wait(begun) for bucket, begun in self.sums.items()}
        self.sums = {**settled}
        return settled

    def whole_anchor(self, bucket: OuterBucket) -> np.ndarray:
        """Return the anchor of a bucket from all replicas of the island, in fresh memory."""
        slices = {bucket: state.anchor for bucket, state in self.states.items()}
        layout = self.layouts[bucket]
        return self.exchange.whole(bucket, slices, size=layout.size, dtype=layout.dtype)

    def close(self, *, timeout_s: float) -> None:
        """End the threads that sum outer gradients.

        Raises:
            DeadlineError: a thread did not end, or a message was not sent, in time.
        """
        self.exchange.finish()
        self.exchange.reducer.close(timeout_s=timeout_s)

    def _send(self, fragment: int, tensors: Mapping[int, _Tensors], *, from_anchor: bool) -> None:
        weight = self.worker.part.island.share
        for bucket in of_fragment(self.states, fragment):
            layout, state = self.layouts[bucket], self.states[bucket]
            piece = self.exchange.slice_of(bucket, size=layout.size)
            local = layout.pack(tensors[bucket.stage])[piece.start : piece.stop]
            start = state.anchor if from_anchor else self._starts[bucket]
            gradient = outer_gradient(start, local, weight=weight)
            self.sums[bucket] = self.exchange.begin(bucket, gradient)
            if self.config.eager:
                self.leads[bucket] = eager_step(self.leads[bucket], gradient, self._optimizer)
        self.in_flight.add(fragment)

    def _step(self, fragment: int, action: OuterAction) -> None:
        """Take the outer step of the slices of this rank."""
        for bucket in of_fragment(self.states, fragment):
            total, state = self.exchange.wait(self.sums.pop(bucket)), self.states[bucket]
            averages = action is OuterAction.AVERAGE
            after = (
                mean_step(state, total) if averages else outer_step(state, total, self._optimizer)
            )
            self.states[bucket] = after
            if not self.config.eager:
                self._starts[bucket] = after.anchor
        self.in_flight.discard(fragment)

    def _continue(
        self, fragment: int, tensors: Mapping[int, _Tensors], *, local_fraction: float
    ) -> None:
        """Mix the new anchor with the parameters of this island."""
        for bucket in of_fragment(self.layouts, fragment):
            layout, of_stage = self.layouts[bucket], tensors[bucket.stage]
            anchor = self.whole_anchor(bucket)
            local = layout.pack(of_stage)
            of_stage.update(layout.unpack(mixed(local, anchor, local_fraction=local_fraction)))

    def _lead(self, fragment: int, tensors: Mapping[int, _Tensors]) -> None:
        """Continue from where this island is ahead of the anchor."""
        for bucket in of_fragment(self.states, fragment):
            self._starts[bucket] = self._start(bucket)
        for bucket in of_fragment(self.layouts, fragment):
            layout = self.layouts[bucket]
            start = self.exchange.whole(bucket, self._starts, size=layout.size, dtype=layout.dtype)
            tensors[bucket.stage].update(layout.unpack(start))

    def _start(self, bucket: OuterBucket) -> np.ndarray:
        anchor = self.states[bucket].anchor
        return anchor + self.leads[bucket].lead if self.config.eager else anchor

    @property
    def _optimizer(self) -> OuterOptimizer:
        return OuterOptimizer(
            learning_rate=self.config.learning_rate, momentum=self.config.momentum
        )

    def _end(self, stops: float) -> OuterEnd:
        sent = self.exchange.between.num_bytes_sent
        since, self._num_bytes_before = sent - self._num_bytes_before, sent
        is_first = self.worker.transport.rank == 0
        flags = np.array([since, stops if is_first else 0.0])
        num_bytes, all_stops = self.exchange.sum_over_all(flags)
        return OuterEnd(num_bytes=int(num_bytes), stops=float(all_stops))


def timetable_of(config: OuterConfig, *, num_steps: int) -> OuterTimetable:
    """Return the timetable of the section `[outer]`."""
    return OuterTimetable(
        every=config.every,
        num_fragments=config.fragments,
        delay=config.overlap,
        num_steps=num_steps,
    )
