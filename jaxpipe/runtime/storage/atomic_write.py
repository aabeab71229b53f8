"""Files that outlive a crash: flushed to the device before anything points to them."""

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Flush a written file to the device, and drop it from memory so that a read reads the device.

    Dropping is a hint that only some systems know (`posix_fadvise`); elsewhere a read back sees
    the cache.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the device: a rename lasts only after this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either all of it under its name or nothing.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    sync_file(partial)
    partial.replace(path)
    sync_folder(path.parent)
