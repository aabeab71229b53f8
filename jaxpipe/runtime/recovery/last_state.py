"""Where the training of one rank stands, for whoever lets it go on after an interruption.

::

    train    ── begin ── step ── hold ── what follows ── step ── hold ── what follows
                                               │ interrupted: the state is that of the last hold,
                                                 and what follows its step is done again
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from jaxpipe.errors import RunError
from jaxpipe.runtime.checkpoint.async_saver import Saver
from jaxpipe.runtime.metrics.step_result import StepEnd
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.worker import Worker
from jaxpipe.runtime.watchdog import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A state after `step` steps, by whom it is held; `ended` is the last of them, if done here."""

    worker: Worker
    state: TrainState
    step: int
    ended: StepEnd | None


class LastState:
    """The newest state of one rank; `train` tells of it, and nothing here is shared by ranks.

    `again` is a step of which all that follows it is to be done again when training begins;
    `on_begin` is called once, when it has begun.
    """

    def __init__(self) -> None:
        self.trained: Trained | None = None
        self.again: StepEnd | None = None
        self.on_begin: Callable[[], object] | None = None
        self._watch: Watchdog | None = None
        self._saver: Saver | None = None

    def begin(self, trained: Trained, *, watch: Watchdog, saver: Saver) -> None:
        """Tell that training goes on from a state; everything before it is forgotten."""
        self.trained, self._watch, self._saver = trained, watch, saver
        if self.on_begin is not None:
            self.on_begin()
            self.on_begin = None

    def hold(self, state: TrainState, ended: StepEnd) -> None:
        """Tell that a step is done, and to which state it has led."""
        assert self.trained is not None, "a step has ended, but training has not begun"
        self.trained = Trained(
            worker=self.trained.worker, state=state, step=ended.step, ended=ended
        )

    def interrupt(self, *, timeout_s: float) -> None:
        """End the threads of training, whose messages fail; the state stays.

        Each thread may take `timeout_s`, but for a checkpoint that is being written.
        """
        if self._watch is not None:
            self._watch.stop()
        if self._saver is not None:
            with suppress(RunError):
                self._saver.finish()
        if self.trained is not None:
            with suppress(RunError):
                self.trained.worker.close(timeout_s=timeout_s)
        self._watch = self._saver = None
