"""The inner steps of an island that a server merges, and what happens between them.

::

    rank 0       asked? ─┐                 ┌─ gathers ─► MergeLine.deliver ─► anchor ─┐
    all ranks    inner step ─ all-reduce ──┴─ deltas                     broadcast ──►┴─ inner step

Rank 0 alone speaks with the server: the other ranks need no way to it. The moments of the inner
optimizer stay on the island.
"""

import numpy as np
from safetensors.numpy import load, save

from jaxpipe.comm import all_reduce, broadcast_bytes, gather_bytes
from jaxpipe.runtime.outer.outer_buckets import CONTROL_TAG
from jaxpipe.runtime.outer.trained_tensors import trained_tensors, with_trained
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.runtime.step.worker import Worker

_GATHER_TAG, _BROADCAST_TAG = CONTROL_TAG + 1, CONTROL_TAG + 2
"""Of buckets of an outer loop, which such a run does not have."""

_Tensors = dict[str, np.ndarray]


class QuorumLoop:
    """What an island has done since its anchor; rank 0 has the line to the server."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.line = worker.job.line
        self.config = worker.job.quorum
        self._anchor: _Tensors = {}
        self._number = 0
        self._steps, self._tokens = 0, 0.0

    @property
    def longest_s(self) -> float:
        """The longest time of what is done after a step [s]; rank 0 gives up before.

        The server may let an island wait for its quorum, and may have to be reached again.
        """
        return self._timeout_s + 2 * self.config.timeout_s

    def start(self, state: TrainState, *, step: int) -> TrainState:
        """Return the state, of `step` inner steps, with the parameters of the anchor."""
        own = self._tensors(state)
        gathered = self._gathered(own)
        answer = None
        if self.line is not None and gathered is not None:
            answer = self.line.start(gathered, step=step)
        return self._continued(state, own, answer)

    def after_step(
        self, state: TrainState, totals: StepTotals, *, done: int
    ) -> tuple[TrainState, int | None]:
        """Deliver, if that is due; return the state, and the bytes that were delivered."""
        self._steps += 1
        self._tokens += totals.targets
        is_last = done == self.worker.job.train.steps or totals.stops > 0
        if not (is_last or self._steps >= self.config.every or self._is_asked()):
            return state, None
        own = self._tensors(state)
        gathered = self._gathered({name: self._anchor[name] - own[name] for name in own})
        answer, num_bytes = None, 0
        if self.line is not None and gathered is not None:
            before = self.line.num_bytes
            answer = self.line.deliver(
                gathered,
                base=self._number,
                step=done,
                steps=self._steps,
                tokens=self._tokens,
            )
            num_bytes = self.line.num_bytes - before
        return self._continued(state, own, answer), num_bytes

    def close(self) -> None:
        """End the line of rank 0."""
        if self.line is not None:
            self.line.close()

    def _is_asked(self) -> bool:
        """Return whether the server asks, alike on all ranks."""
        is_asked = self.line is not None and self.line.asked(self._number)
        plan = self.worker.job.plan
        total = all_reduce(
            self.worker.transport,
            np.array([float(is_asked)]),
            plan.sync_all,
            tag=CONTROL_TAG,
            timeout_s=self._timeout_s,
        )
        return bool(total[0])

    def _gathered(self, tensors: _Tensors) -> _Tensors | None:
        """Return on rank 0 the tensors of all stages, of the first replica."""
        plan, rank = self.worker.job.plan, self.worker.transport.rank
        payload = save(tensors) if plan.replica(rank) == 0 else b""
        payloads = gather_bytes(
            self.worker.transport, payload, root=0, tag=_GATHER_TAG, timeout_s=self._timeout_s
        )
        if payloads is None:
            return None
        gathered: _Tensors = {}
        for payload in payloads:
            gathered |= load(payload) if payload else {}
        return gathered

    def _continued(
        self, state: TrainState, own: _Tensors, answer: tuple[int, _Tensors] | None
    ) -> TrainState:
        """Return the state with the anchor that rank 0 has been given."""
        payload = None
        if answer is not None:
            number, anchor = answer
            payload = number.to_bytes(8, "big") + save(anchor)
        payload = broadcast_bytes(
            self.worker.transport, payload, root=0, tag=_BROADCAST_TAG, timeout_s=self.longest_s
        )
        self._number, anchor = int.from_bytes(payload[:8], "big"), load(payload[8:])
        self._anchor = {name: anchor[name] for name in own}
        self._steps, self._tokens = 0, 0.0
        return with_trained(self.worker, state, dict.fromkeys(state.stages, self._anchor))

    def _tensors(self, state: TrainState) -> _Tensors:
        """Return the trained parameters of this rank by name."""
        tensors: _Tensors = {}
        for stage in state.stages:
            tensors |= trained_tensors(self.worker, state, stage)
        return tensors

    @property
    def _timeout_s(self) -> float:
        return self.worker.job.run.timeout_s


def joined_quorum(worker: Worker, state: TrainState, *, step: int) -> tuple[QuorumLoop, TrainState]:
    """Return the loop of an island that has joined, and the state with the server's anchor."""
    loop = QuorumLoop(worker)
    return loop, loop.start(state, step=step)
