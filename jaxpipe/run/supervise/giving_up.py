"""The rule that decides what follows failed attempts: another one, with which devices, or none."""

from enum import Enum, auto

from jaxpipe.run.supervise.ending import Ending
from jaxpipe.runtime.watchdog import CauseKind


class Decision(Enum):
    """What follows a failed attempt."""

    STOP = auto()
    """The run is hopeless."""
    RESTART = auto()
    """Another attempt with the same devices."""
    LEAVE_OUT = auto()
    """Another attempt without the devices of the lost rank: they seem to be gone."""
    LEAVE_OUT_AGAIN = auto()
    """Another attempt without the devices that the one before the last had left out."""
    BRING_BACK = auto()
    """Another attempt with all devices: those that were gone may have returned."""


def decide(endings: tuple[Ending, ...], *, max_restarts: int) -> Decision:
    """Return what follows these failed attempts, of which the last one has just ended.

    One failure may be chance; two in a row from the same checkpoint are not. If the same rank was
    lost both times (killed, stopped, hung), or no cause names one, the next attempt leaves its
    devices out. Losses of different ranks are usual on spot machines, which come back. An error
    that a rank raised twice would recur with any devices.

    When an attempt without some devices fails after it has saved a checkpoint, the next one has all
    of them again; if that one fails before its first checkpoint, they are left out again.
    """
    last = endings[-1]
    if len(endings) > max_restarts:
        return Decision.STOP
    if last.made_progress:
        return Decision.BRING_BACK if last.attempt.planned.left_out else Decision.RESTART
    return Decision.RESTART if len(endings) == 1 else _after_two(endings[-2], last)


def _after_two(before: Ending, last: Ending) -> Decision:
    """Return what follows two failures, of which the last one has left no new checkpoint."""
    if before.attempt.planned.left_out and not last.attempt.planned.left_out:
        return Decision.LEAVE_OUT_AGAIN
    if before.made_progress:
        return Decision.RESTART
    if all(end.cause is not None and end.cause.kind is CauseKind.ERROR for end in (before, last)):
        return Decision.STOP
    return Decision.LEAVE_OUT if _lost_the_same(before, last) else Decision.RESTART


def _lost_the_same(before: Ending, last: Ending) -> bool:
    """Return whether two attempts lost the same rank, or none that is known; a link is no rank."""
    if any(end.cause is not None and end.cause.kind is CauseKind.LINK for end in (before, last)):
        return False
    # The ranks of different plans are different devices.
    is_same = before.attempt.planned.groups == last.attempt.planned.groups
    return is_same and before.lost_rank == last.lost_rank
