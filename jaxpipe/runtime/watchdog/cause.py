"""Why a run has ended, in `cause.json` in its folder: the first rank to say it is believed.

Whether a run has ended in order: a mark in its folder, since exit codes do not always tell.

An `mpirun` that lets ranks survive others ends with exit code 0 even if all of them were killed.
"""

import logging
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

_CAUSE_FILE = "cause.json"


class CauseKind(StrEnum):
    """What kind of end it was."""

    ERROR = "error"
    """A rank raised an error."""
    HANG = "hang"
    """A rank did the same thing for too long, and waited for nobody."""
    STOPPED = "stopped"
    """A process did nothing at all any more: it was stopped, or its host is gone."""
    DEADLOCK = "deadlock"
    """Ranks waited for each other."""
    KILLED = "killed"
    """The launcher ended, and no rank said why."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Which rank ended the run, and in what; `step` counts from 1, None is what is not known."""

    kind: CauseKind
    message: str
    rank: int | None = None
    stage: int | None = None
    step: int | None = None
    last_instruction: str | None = None
    time: str = field(default_factory=_now)

    def __str__(self) -> str:
        """Return it on one line.

        >>> print(Cause(kind=CauseKind.HANG, message="3 s", rank=2, stage=1, step=7,
        ...             last_instruction="forward of microbatch 0"))
        rank 2, stage 1, step 7, forward of microbatch 0: hang: 3 s
        """
        places = {"rank": self.rank, "stage": self.stage, "step": self.step}
        words = [f"{name} {place}" for name, place in places.items() if place is not None]
        where = ", ".join([*words, *filter(None, [self.last_instruction])])
        return f"{where or 'the run'}: {self.kind}: {self.message}"


def write_cause(folder: Path, cause: Cause) -> bool:
    """Write `cause.json`, unless there is one already, and return whether it was written.

    What follows from the first error, such as a message that never came, is not the cause.
    """
    draft = folder / f"{_CAUSE_FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(cause)))
        os.link(draft, folder / _CAUSE_FILE)
    except FileExistsError:
        return False
    except OSError as error:
        logger.warning("the cause of the end is not in %s: %s: %s", folder, error, cause)
    finally:
        draft.unlink(missing_ok=True)
    return True


def read_cause(folder: Path) -> Cause | None:
    """Return why the run in a folder ended, None if it has not, or in order."""
    try:
        return msgspec.json.decode((folder / _CAUSE_FILE).read_bytes(), type=Cause)
    except (OSError, msgspec.DecodeError):
        return None


def clear_cause(folder: Path) -> None:
    """Forget why the last run in a folder ended, before the next begins."""
    (folder / _CAUSE_FILE).unlink(missing_ok=True)


_ENDED_FILE = "ended"


def mark_ended(folder: Path) -> None:
    """Tell that the run in a folder is over in order: done, or stopped as it was told."""
    (folder / _ENDED_FILE).touch()


def has_ended(folder: Path) -> bool:
    """Return whether the run in a folder is over in order."""
    return (folder / _ENDED_FILE).exists()


def clear_ended(folder: Path) -> None:
    """Forget how the last run in a folder ended, before the next begins."""
    (folder / _ENDED_FILE).unlink(missing_ok=True)
