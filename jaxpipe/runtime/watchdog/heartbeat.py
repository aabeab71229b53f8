"""The heartbeat of a rank: a small file of its own, which the other ranks read.

The file is overwritten in place, always with the same length, so that a full disk does not silence
a rank. It is opened and closed each time: on NFS, only then do other hosts see the new content.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jaxpipe.foreign_file import read_json

_NUM_BYTES, _BYTES_OF_RANK = 512, 14
"""Of its fields, and of a rank and a comma, twice: it may wait for all ranks, and see them halt."""
_MOST_BYTES = 2**20
"""Of a file that may be another version's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The activity of a rank, the ranks that it waits for, and whether its deadline is exceeded.

    `beat` counts the heartbeats: if it no longer increases, the process is stopped. `step` counts
    from 1, and is 0 while the rank starts. `process` is the process id on `host`. `halted` are the
    ranks on this host whose processes are stopped or gone, as far as this rank has looked. `gap_s`
    is the longest time between two heartbeats lately: on a busy host it is longer.
    """

    rank: int
    stage: int
    step: int
    doing: str
    waits_for: tuple[int, ...]
    overdue: bool
    beat: int
    process: int
    host: str
    halted: tuple[int, ...] = ()
    gap_s: float = 0.0


def heartbeat_file(folder: Path, rank: int) -> Path:
    """Return the path of a rank's heartbeat in the folder of the run.

    >>> heartbeat_file(Path("run"), 3).as_posix()
    'run/watch/rank-3.json'
    """
    return folder / "watch" / f"rank-{rank}.json"


def most_bytes(num_ranks: int) -> int:
    """Return the length of the longest heartbeat of a run.

    >>> most_bytes(2)
    540
    """
    return _NUM_BYTES + _BYTES_OF_RANK * num_ranks


def write_heartbeat(path: Path, heartbeat: Heartbeat, *, num_ranks: int) -> None:
    """Overwrite the heartbeat, or create it; JSON allows blanks at its end.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, msgspec.json.encode(heartbeat).ljust(most_bytes(num_ranks)), 0)
    finally:
        os.close(descriptor)


def read_heartbeats(folder: Path, ranks: range) -> dict[int, Heartbeat]:
    """Return the heartbeats of ranks, except those that are missing or were being written."""
    heartbeats = {rank: _read(heartbeat_file(folder, rank)) for rank in ranks}
    return {rank: beat for rank, beat in heartbeats.items() if beat is not None}


def _read(file: Path) -> Heartbeat | None:
    try:
        return read_json(file, Heartbeat, most_bytes=_MOST_BYTES)
    except (OSError, ValueError):
        return None


def have_begun(folder: Path) -> bool:
    """Return whether a rank of the run in a folder has begun to train.

    All ranks have then installed their signal handlers: they do so before a collective.
    """
    files = heartbeat_file(folder, 0).parent.glob("rank-*.json")
    return any(beat.step > 0 for beat in map(_read, files) if beat is not None)


def clear_heartbeats(folder: Path) -> None:
    """Remove the heartbeats that killed ranks have left in a folder, before a run begins."""
    for pattern in ("rank-*.json", "start-*.json"):
        for left in heartbeat_file(folder, 0).parent.glob(pattern):
            left.unlink(missing_ok=True)
