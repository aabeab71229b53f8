"""How an attempt of a run ended."""

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from jaxpipe.run.drift.adopt import ADOPTED_EXIT_CODE
from jaxpipe.run.supervise.planner import Planned
from jaxpipe.runtime.process.mpirun import STOP_EXIT_CODES
from jaxpipe.runtime.watchdog import Cause


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
