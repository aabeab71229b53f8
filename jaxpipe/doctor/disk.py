"""Whether a folder takes files, and has room for checkpoints."""

import os
import shutil
from pathlib import Path
from tempfile import NamedTemporaryFile

from jaxpipe.doctor.finding import Finding, Health

_ROOM_BYTES = 2**30
_PROBE_BYTES = 2**20


def judge_disk(folder: Path, *, room_bytes: int = _ROOM_BYTES) -> Finding:
    """Write a file of 1 MiB to the folder, read it back, remove it, and look at the room left."""
    content = os.urandom(_PROBE_BYTES)
    try:
        with NamedTemporaryFile(dir=folder, prefix=".jaxpipe-doctor-") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            same = Path(file.name).read_bytes() == content
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            about="disk",
            health=Health.BROKEN,
            words=f"{folder} takes no file: {error.strerror}",
            fix="name a folder that exists and that you may write to, in `run.folder`",
        )
    if not same:
        return Finding(
            about="disk",
            health=Health.BROKEN,
            words=f"{folder} gives back other bytes than were written",
            fix="use another disk: checkpoints on this one would be corrupt",
        )
    words = f"{folder.resolve()} takes files, {free / 2**30:,.1f} GiB free"
    if free < room_bytes:
        return Finding(
            about="disk",
            health=Health.SLOW,
            words=words,
            fix="make room, or set `run.folder` to another disk: a checkpoint takes 12 bytes for "
            "each parameter, and `checkpoint.keep` of them stay",
        )
    return Finding(about="disk", health=Health.OK, words=words)
