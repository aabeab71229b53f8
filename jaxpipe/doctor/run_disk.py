"""Check that a folder can be written and has room for checkpoints."""

import os
import shutil
from pathlib import Path
from tempfile import NamedTemporaryFile

from jaxpipe.doctor.finding import Finding, Health

_ROOM_BYTES = 2**30
_PROBE_BYTES = 2**20


def judge_disk(folder: Path, *, room_bytes: int = _ROOM_BYTES) -> Finding:
    """Write a file of 1 MiB, read it back, remove it, and check the free space."""
    content = os.urandom(_PROBE_BYTES)
    try:
        with NamedTemporaryFile(dir=folder, prefix=".jaxpipe-doctor-") as file:
            file.write(content)
            file.flush()
            # A full or failing disk may report its error at fsync only, not at the write.
            os.fsync(file.fileno())
            same = Path(file.name).read_bytes() == content
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            about="disk",
            health=Health.BROKEN,
            message=f"{folder} cannot be written: {error.strerror}",
            fix="name a folder that exists and that you may write to, in `run.folder`",
        )
    if not same:
        return Finding(
            about="disk",
            health=Health.BROKEN,
            message=f"{folder} returns other bytes than were written",
            fix="use another disk: checkpoints on this one would be corrupt",
        )
    message = f"{folder.resolve()} can be written, {free / 2**30:,.1f} GiB free"
    if free < room_bytes:
        return Finding(
            about="disk",
            health=Health.SLOW,
            message=message,
            fix="make room, or set `run.folder` to another disk: a checkpoint takes 12 bytes for "
            "each parameter, and `checkpoint.keep` of them are kept",
        )
    return Finding(about="disk", health=Health.OK, message=message)
