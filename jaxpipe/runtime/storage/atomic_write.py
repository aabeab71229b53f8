"""Files that survive a crash: they are flushed to the device before anything refers to them."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mode_by_umask(path: Path) -> Iterator[None]:
    """Give the file that the body writes the mode that the umask asks for.

    safetensors makes files that only their owner can read.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield
    path.chmod(mode)


def sync_file(path: Path) -> None:
    """Flush a written file to the device, and drop it from the cache: a read reads the device.

    Dropping is a hint that only some systems support (`posix_fadvise`); elsewhere a file that is
    read back comes from the cache.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the device: only then is a rename durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at_once(path: Path, data: bytes) -> None:
    """Write a file that others read meanwhile: they see its old content or the new, never a part.

    Nothing is flushed: a crash of the host may lose it.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(data)
    beside.replace(path)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file such that a crash leaves all of it under its name, or nothing.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    # Content, then name, then folder: each must be on the device before the next.
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    sync_file(partial)
    partial.replace(path)
    sync_folder(path.parent)
