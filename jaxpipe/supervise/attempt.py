"""One attempt of a run, and how it ended."""

from dataclasses import dataclass
from enum import Enum, auto

from jaxpipe.runtime.launch import TOLD_TO_STOP
from jaxpipe.runtime.watch import Cause


class EndKind(Enum):
    """What the exit code of an attempt says."""

    DONE = auto()
    TOLD_TO_STOP = auto()
    WRONG_INPUT = auto()
    FAILED = auto()

    @classmethod
    def of(cls, code: int) -> "EndKind":
        """Return what an exit code says.

        >>> [EndKind.of(code).name for code in (0, 143, 2, 1, -9)]
        ['DONE', 'TOLD_TO_STOP', 'WRONG_INPUT', 'FAILED', 'FAILED']
        """
        kinds = {0: cls.DONE, 2: cls.WRONG_INPUT} | dict.fromkeys(TOLD_TO_STOP, cls.TOLD_TO_STOP)
        return kinds.get(code, cls.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is started: with which changes of the configuration, and from which step, if any."""

    number: int
    settings: tuple[str, ...]
    from_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended: its exit code, why, and from which step the next one would go on."""

    attempt: Attempt
    code: int
    cause: Cause | None
    next_step: int | None

    @property
    def has_got_on(self) -> bool:
        """Whether there is a checkpoint that was not there before the attempt."""
        return self.next_step != self.attempt.from_step
