"""Steps whose gradients are not finite are skipped; too many in a row end the run."""

from jaxpipe.comm import Transport
from jaxpipe.errors import RunError
from jaxpipe.runtime.process.preflight import raise_on_all_ranks
from jaxpipe.runtime.stage.train_state import TrainState

_MAX_IN_A_ROW = 3


class NonfiniteSteps:
    """Counts the steps in a row that were skipped, the same on all ranks.

    Steps do not count while the loss scale can still decrease: that is how it finds its value.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def check(
        self, transport: Transport, before: TrainState, after: TrainState, *, step: int
    ) -> None:
        """Count a step, given the states before and after it.

        Raises:
            RunError: it is the third in a row; rank 0 reports it.
        """
        is_skipped = after.skipped_steps > before.skipped_steps
        can_decrease = before.loss_scale is not None and before.loss_scale.scale > 1
        # From the states, which are equal on all ranks: they end together, without a message.
        self._in_a_row = self._in_a_row + 1 if is_skipped and not can_decrease else 0
        if self._in_a_row == _MAX_IN_A_ROW:
            first = step - _MAX_IN_A_ROW + 1
            error = RunError(
                f"gradients must be finite: those of steps {first} to {step} were not, and changed "
                "nothing; lower `optimizer.learning_rate` or check the data, and resume with "
                "--resume"
            )
            raise_on_all_ranks(transport, error)
