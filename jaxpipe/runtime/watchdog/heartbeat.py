"""What a rank says of itself while it trains, in a small file of its own that others read.

The file is written in place and always of one length, so a full disk does not silence a rank. It
is opened and closed each time: on NFS, that is when other hosts see what was written.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

_NUM_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Where a rank is: what it does in which step, for whom it waits, and whether for too long.

    `beat` counts how often it has said so: one that does not grow any more is of a process that is
    stopped. `step` counts from 1. `process` is its process on its `host`.
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


def is_gone(pulse: Heartbeat) -> bool:
    """Return whether the process of a pulse has ended; those of other hosts are not known of.

    Whoever ends in order takes its pulse along.

    >>> mine = Heartbeat(rank=0, stage=0, step=1, doing="update", waits_for=(), overdue=False,
    ...                  beat=1, process=os.getpid(), host=socket.gethostname())
    >>> is_gone(mine)
    False
    """
    if pulse.host != socket.gethostname():
        return False
    try:
        os.kill(pulse.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's, and there
        return False
    return False


def heartbeat_file(folder: Path, rank: int) -> Path:
    """Return where a rank of the run in a folder says where it is.

    >>> heartbeat_file(Path("run"), 3).as_posix()
    'run/watch/rank-3.json'
    """
    return folder / "watch" / f"rank-{rank}.json"


def write_heartbeat(path: Path, pulse: Heartbeat) -> None:
    """Overwrite a file that is there, or write a new one.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, msgspec.json.encode(pulse)[:_NUM_BYTES].ljust(_NUM_BYTES), 0)
    finally:
        os.close(descriptor)


def read_heartbeats(folder: Path, ranks: range) -> dict[int, Heartbeat]:
    """Return the pulses of ranks; without those that have none, or were being written."""
    pulses: dict[int, Heartbeat] = {}
    for rank in ranks:
        try:
            data = heartbeat_file(folder, rank).read_bytes()
            pulses[rank] = msgspec.json.decode(data, type=Heartbeat)
        except (OSError, msgspec.DecodeError):
            continue
    return pulses
