"""Room on the disk for the next checkpoint: older ones go, but never the newest intact one.

::

    room for 3       1  2  3        keep = 3: the next save needs a fourth place
    before save 4       2  3        1 is removed first
    after it            2  3  4     as many as there is room for, instead of none any more
"""

import errno
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.folders import committed_folders, discard, remove_remains
from jaxpipe.runtime.checkpoint.newest_valid import newest_valid
from jaxpipe.runtime.storage.object_folder import Folder

logger = logging.getLogger(__name__)

_RUST_ERROR = re.compile(r"\(os error (\d{1,5})\)")


def error_number(error: Exception) -> int | None:
    """Return the `errno` of a failed write, also of one within safetensors, which only says it.

    >>> error_number(OSError(28, "No space left on device"))
    28
    >>> error_number(CheckpointError("I/O error: No space left on device (os error 28)"))
    28
    """
    if isinstance(error, OSError):
        return error.errno
    said = _RUST_ERROR.search(str(error))
    return None if said is None else int(said[1])


def most_with_room(run_folder: Path, number: int | None) -> int | None:
    """Return how many checkpoints may stay for the next one to fit, after a save that failed.

    `number` is its `errno`. None if it did not fail for want of space, or if there is space by now.
    A quota does not show in the free space: it leaves one fewer than there are.
    """
    is_full = number == errno.ENOSPC and not _has_room(run_folder)
    count = len(committed_folders(run_folder))
    return max(1, count - 1) if is_full or number == errno.EDQUOT else None


def _newest_intact(run_folder: Path) -> Folder:
    return newest_valid(run_folder).folder


def make_room(
    run_folder: Path,
    *,
    most: int | None = None,
    newest: Callable[[Path], Folder] = _newest_intact,
) -> None:
    """Remove the oldest checkpoints until there is room for another, of the size of the newest.

    The remains of interrupted saves go first. At least the newest intact one stays, and at most
    `most`. Costs a read of that one if any is removed. `newest` returns the folder that stays.
    """
    remove_remains(run_folder)
    while _is_short(run_folder, most):
        try:
            kept = newest(run_folder)
        except CheckpointError:
            return
        committed = committed_folders(run_folder)
        older = [step for step, folder in committed.items() if folder.name < kept.name]
        if not older:
            return
        logger.warning(
            "there is no room for another checkpoint in %s: that of step %d is removed, %d stay",
            run_folder,
            min(older),
            len(committed) - 1,
        )
        discard(committed[min(older)])


def _is_short(run_folder: Path, most: int | None) -> bool:
    count = len(committed_folders(run_folder))
    return (most is not None and count > most) or not _has_room(run_folder)


def _has_room(run_folder: Path) -> bool:
    """Return whether another checkpoint of the size of the newest fits; True without one."""
    committed = committed_folders(run_folder)
    if not committed:
        return True
    newest = committed[max(committed)]
    blocks = os.statvfs(newest)
    # In whole blocks, as disks store files, and one for the folder.
    needed = 1 + sum(-(-each.stat().st_size // blocks.f_frsize) for each in newest.iterdir())
    return blocks.f_bavail >= needed
