"""Whether a run has ended in order: a mark in its folder, since exit codes do not always tell.

An `mpirun` that lets ranks survive others ends with exit code 0 even if all of them were killed.
"""

from pathlib import Path

_FILE = "ended"


def mark_ended(folder: Path) -> None:
    """Tell that the run in a folder is over in order: done, or stopped as it was told."""
    (folder / _FILE).touch()


def has_ended(folder: Path) -> bool:
    """Return whether the run in a folder is over in order."""
    return (folder / _FILE).exists()


def clear_ended(folder: Path) -> None:
    """Forget how the last run in a folder ended, before the next begins."""
    (folder / _FILE).unlink(missing_ok=True)
