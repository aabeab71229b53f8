"""What to do after an attempt has ended."""

from enum import Enum, auto

from jaxpipe.runtime.watch import CauseKind
from jaxpipe.supervise.attempt import Ending, EndKind


class Decision(Enum):
    """What comes next."""

    STOP = auto()
    """It is over: done, told to stop, wrong from the beginning, or hopeless."""
    RESTART = auto()
    """Once more, with the same ranks."""
    SHRINK = auto()
    """Once more, with fewer ranks: what held a rank is gone."""


def decide(endings: tuple[Ending, ...], *, max_restarts: int) -> Decision:
    """Decide by all attempts so far, of which the last one has just ended.

    One failure may be chance. Two in a row from the same checkpoint are not: where ranks were lost
    (killed, stopped, hung) there is less to compute with than was thought; an error that a rank
    raised comes again with any number of ranks.
    """
    last = endings[-1]
    if EndKind.of(last.code) is not EndKind.FAILED or len(endings) > max_restarts:
        return Decision.STOP
    if len(endings) == 1 or last.has_got_on or endings[-2].has_got_on:
        return Decision.RESTART
    is_error = last.cause is not None and last.cause.kind is CauseKind.ERROR
    return Decision.STOP if is_error else Decision.SHRINK
