"""Why a run has ended: `cause.json` in its folder, written by the first rank that fails.

The file `ended` marks a run that ended in order. Exit codes are not enough: an `mpirun` with ULFM
returns 0 even if all ranks were killed.
"""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from jaxpipe.foreign_file import read_json, reason_of

logger = logging.getLogger(__name__)

CAUSE_FILE = "cause.json"
_MOST_BYTES = 2**20


class CauseKind(StrEnum):
    """How the run ended."""

    ERROR = "error"
    """A rank raised an error."""
    HANG = "hang"
    """A rank exceeded the deadline of an instruction, and waited for no other rank."""
    STOPPED = "stopped"
    """A rank sent no heartbeat: its process was stopped, or its host is gone."""
    LINK = "link"
    """Messages between running ranks did not arrive: they waited for each other, in a cycle."""
    KILLED = "killed"
    """The launcher ended, and no rank reported an error."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The rank that ended the run, and its instruction; `step` counts from 1, None is unknown."""

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
        numbers = {"rank": self.rank, "stage": self.stage, "step": self.step}
        parts = [f"{name} {number}" for name, number in numbers.items() if number is not None]
        where = ", ".join([*parts, *filter(None, [self.last_instruction])])
        return f"{where or 'the run'}: {self.kind}: {self.message}"


def write_cause(folder: Path, cause: Cause) -> bool:
    """Write `cause.json`, unless there is one, and return whether it was written.

    Later errors, such as a message that never arrives, are consequences of the first. A folder that
    cannot be written costs a warning with the cause in it.
    """
    draft = folder / f"{CAUSE_FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(cause)))
        # A link, unlike a rename, fails if the file exists: of several ranks, only one succeeds.
        os.link(draft, folder / CAUSE_FILE)
    except FileExistsError:
        return False
    except OSError as error:
        # The cause is part of the warning: there may be no other trace of it.
        logger.warning("cannot write the cause to %s: %s: %s", folder, error, cause)
        return False
    finally:
        # A folder that refuses writes refuses this as well, and its error would hide the first.
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return True


def read_cause(folder: Path) -> Cause | None:
    """Return why the run in a folder ended; None if it has not, or has ended in order."""
    try:
        return read_json(folder / CAUSE_FILE, Cause, most_bytes=_MOST_BYTES, inside=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read: %s", folder / CAUSE_FILE, reason_of(error))
        return None


def clear_cause(folder: Path) -> None:
    """Remove the cause of the last run in a folder, before the next begins."""
    (folder / CAUSE_FILE).unlink(missing_ok=True)


ENDED_FILE = "ended"


def mark_ended(folder: Path) -> None:
    """Mark the run in a folder as ended in order: completed, or stopped on request."""
    (folder / ENDED_FILE).touch()


def has_ended(folder: Path) -> bool:
    """Return whether the run in a folder has ended in order."""
    return (folder / ENDED_FILE).exists()


def clear_ended(folder: Path) -> None:
    """Remove the mark of the last run in a folder, before the next begins."""
    (folder / ENDED_FILE).unlink(missing_ok=True)
