"""How an attempt of a run ended; what follows: another, with which devices, or none."""

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from jaxpipe.run.drift.new_plan import ADOPTED_EXIT_CODE
from jaxpipe.run.supervise.planner import Planned
from jaxpipe.runtime.process.mpirun import STOP_EXIT_CODES
from jaxpipe.runtime.watchdog import Cause, CauseKind


class EndKind(Enum):
    """How an attempt ended."""

    DONE = auto()
    STOPPED = auto()
    WRONG_INPUT = auto()
    FAILED = auto()
    ADOPTED = auto()
    """It has stopped for a new plan."""
    JOINED = auto()
    """It has stopped for hosts that join."""

    @classmethod
    def of(cls, code: int) -> "EndKind":
        """Return the kind of an exit code of `jaxpipe train`.

        >>> [EndKind.of(code).name for code in (0, 143, 2, 75, -9)]
        ['DONE', 'STOPPED', 'WRONG_INPUT', 'ADOPTED', 'FAILED']
        """
        kinds = {0: cls.DONE, 2: cls.WRONG_INPUT, ADOPTED_EXIT_CODE: cls.ADOPTED} | dict.fromkeys(
            STOP_EXIT_CODES, cls.STOPPED
        )
        return kinds.get(code, cls.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run: its plan, its settings, and the step that it resumes from, if any.

    `plan_file` has the plan if it is not the configured one.
    """

    number: int
    planned: Planned
    settings: tuple[str, ...]
    from_step: int | None
    plan_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended: exit code, cause, and the step at which the next would resume."""

    attempt: Attempt
    code: int
    kind: EndKind
    cause: Cause | None
    next_step: int | None

    @property
    def lost_rank(self) -> int | None:
        """The rank that the cause names, if any."""
        return None if self.cause is None else self.cause.rank

    @property
    def made_progress(self) -> bool:
        """Whether the attempt has left a new checkpoint."""
        return self.next_step != self.attempt.from_step


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
