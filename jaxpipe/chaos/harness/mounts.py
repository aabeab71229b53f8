"""Small file systems for the folder of a run; mounting one needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WITHIN_S = 30.0


def can_mount(folder: Path) -> bool:
    """Return whether this user can mount a file system."""
    if os.geteuid():
        return False
    there = folder / "mounted"
    try:
        with mounted(there):
            return True
    except (OSError, subprocess.SubprocessError):
        return False


@contextmanager
def mounted(folder: Path, options: str = "size=64m") -> Iterator[Path]:
    """Mount a file system in memory at a folder that is made for it.

    Raises:
        OSError: there is no `mount`.
        CalledProcessError: this user may not.
    """
    folder.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True, timeout=_WITHIN_S)


def mount(*words: str) -> None:
    """Run `mount`.

    Raises:
        CalledProcessError: it failed.
    """
    subprocess.run(("mount", *words), check=True, capture_output=True, timeout=_WITHIN_S)
