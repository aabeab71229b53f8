"""Locks on files that processes of one host share; the kernel releases those of a dead process."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_BETWEEN_S = 0.01


def lock_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file, until it is closed; return False if others held it all the time."""
    until_s = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_BETWEEN_S)
        else:
            return True


@contextmanager
def in_turn(path: Path, *, wait_s: float) -> Iterator[None]:
    """Do what processes of this host do one after the other, by a lock file.

    After `wait_s`, and where the file cannot be locked, it is done beside them.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        logger.debug("%s is not locked: %s", path, error)
        yield
        return
    is_locked = False
    try:
        try:
            is_locked = lock_within(descriptor, wait_s)
        except OSError as error:  # of a file system without locks
            logger.debug("%s is not locked: %s", path, error)
        yield
        # Waiting processes have the file open: they lock it after it is removed as well.
        if is_locked:
            with suppress(OSError):
                path.unlink()
    finally:
        os.close(descriptor)  # which releases the lock
