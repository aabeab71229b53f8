"""The latest complete training state of a rank, kept for in-job recovery.

::

    train    ── start_from ── step ── update ── report, save ── step ── update ── report, save
                                                     │
                   interrupted here: the state is that of the last update, and the report and the
                   checkpoint of its step are repeated
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
    """The state after `step` steps; `ended` is the last of them, unless it comes from a file."""

    worker: Worker
    state: TrainState
    step: int
    ended: StepEnd | None


class LastState:
    """The latest state of one rank, as `train` updates it.

    `unfinished` is a step whose report and checkpoint are to be repeated when training restarts;
    `on_start` is called once when it has restarted.
    """

    def __init__(self) -> None:
        self.trained: Trained | None = None
        self.unfinished: StepEnd | None = None
        self.on_start: Callable[[], object] | None = None
        self._watch: Watchdog | None = None
        self._saver: Saver | None = None

    def watched_by(self, watch: Watchdog) -> None:
        """Take the watchdog that watches from now on, while the stages are compiled, too."""
        self._watch = watch

    def start_from(self, trained: Trained, *, saver: Saver) -> None:
        """Replace everything by the state from which training starts."""
        self.trained, self._saver = trained, saver
        if self.on_start is not None:
            self.on_start()
            self.on_start = None

    def update(self, state: TrainState, ended: StepEnd) -> None:
        """Replace the state by that after a step."""
        assert self.trained is not None, "a step has ended, but training has not started"
        self.trained = Trained(
            worker=self.trained.worker, state=state, step=ended.step, ended=ended
        )

    def interrupt(self, *, timeout_s: float) -> None:
        """End the threads of training, whose messages fail; the state stays.

        Each thread may take `timeout_s`, except that of a checkpoint that is being written.
        """
        # The watchdog first: ranks that recover look to it like ranks that hang.
        if self._watch is not None:
            self._watch.stop()
        if self._saver is not None:
            with suppress(RunError):
                self._saver.close()
        if self.trained is not None:
            with suppress(RunError):
                self.trained.worker.close(timeout_s=timeout_s)
        self._watch = self._saver = None
