"""An island trains again what the log of a merge server tells: stretch by stretch, as it was.

::

    origin ─► state ─► line: anchor ─► inner steps ─┬─ delivered? ─► line
                                                    └─ the origin of a later stretch? ─► kept

States are kept in memory in the place of checkpoints: from them the run had continued after it
was killed, or with them it went on in the next round.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import jax
import jax.numpy as jnp

from jaxpipe.comm import Transport
from jaxpipe.errors import RunError
from jaxpipe.outer.merge_lineage import Origin, Stretch
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.quorum_loop import QuorumLoop
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.step.worker import Worker, start
from jaxpipe.runtime.train_snapshot import Saved, restore_state

_NEVER: Final = 2**62
"""Inner steps after which an island delivers unasked: the log says when."""
_PATIENCE_S: Final = 86400.0
"""The longest that an island waits for others, which train on the same machine."""


def train_stretches(
    job: Job,
    transport: Transport,
    stretches: Mapping[int, Stretch],
    *,
    begun: Saved | None,
    is_over: Callable[[], bool],
) -> None:
    """Train the stretches of an island, by their number, in their order; every rank calls this.

    The line of rank 0 gives their anchors, and takes what they deliver. A run that has `begun`
    with the parameters of another one has those as its fresh state. Every state that a later
    stretch begins with is in memory, beside that which trains.

    Raises:
        RunError: the replay is over before the island.
    """
    quorum = replace(job.quorum, every=_NEVER, timeout_s=_PATIENCE_S)
    worker = start(replace(job, quorum=quorum), transport)
    try:
        states = _States(worker, stretches, begun=begun)
        loop = QuorumLoop(worker)
        for number, stretch in stretches.items():
            state = loop.start(states.of(stretch.origin), step=stretch.start)
            for done in range(stretch.start + 1, stretch.end + 1):
                if is_over():
                    raise RunError(f"rank {transport.rank} ends with the replay")
                state, totals = worker.train_step(state, step=done - 1)
                states.keep(Origin(stretch=number, step=done), state)
                # `after_step` returns the anchor, but in the log the island trained on without it.
                unmerged = _copied(state) if stretch.delivered == done < stretch.end else None
                state, _ = loop.after_step(state, totals, done=done)
                state = state if unmerged is None else unmerged
    finally:
        worker.close()


class _States:
    """The states that later stretches begin with; each is released with its last use."""

    def __init__(
        self, worker: Worker, stretches: Mapping[int, Stretch], *, begun: Saved | None
    ) -> None:
        self._worker, self._begun = worker, begun
        self._kept: dict[Origin, TrainState] = {}
        self._uses = Counter(stretch.origin for stretch in stretches.values())

    def of(self, origin: Origin | None) -> TrainState:
        """Return the state of an origin, which the next step donates."""
        if origin is None:
            return restore_state(self._worker, self._begun)[0]
        self._uses[origin] -= 1
        return _copied(self._kept[origin]) if self._uses[origin] else self._kept.pop(origin)

    def keep(self, origin: Origin, state: TrainState) -> None:
        """Keep a copy of a state, if a stretch begins with it."""
        if self._uses[origin]:
            self._kept[origin] = _copied(state)


def _copied(state: TrainState) -> TrainState:
    stages = {
        stage: StageState(
            params=jax.tree.map(jnp.copy, part.params), moments=jax.tree.map(jnp.copy, part.moments)
        )
        for stage, part in state.stages.items()
    }
    return replace(state, stages=stages)
