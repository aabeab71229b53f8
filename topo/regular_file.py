"""Files in folders that may come from strangers: only regular ones, inside their folder, bounded.

A pipe in the place of a file would be waited for, a device read for ever, a file of any size taken
into memory, and a link written through to where it leads.
"""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, *, most_bytes: int) -> bytes:
    """Return the content of a regular file of at most `most_bytes`, also behind a symbolic link.

    >>> read_regular(Path("/dev/null"), most_bytes=10)
    Traceback (most recent call last):
    OSError: [Errno 22] it is not a regular file: '/dev/null'

    Raises:
        OSError: it is missing, something else than a file, or larger.
    """
    # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        check_regular(os.fstat(descriptor), path)
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return content


def check_regular(status: os.stat_result, path: Path) -> None:
    """Check that what the system says of a path is a regular file.

    Raises:
        OSError: it is a folder, a pipe, a device, a socket or a link.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def check_inside(file: str, folder: Path) -> Path:
    """Return the path of a file that another file of `folder` names: a plain name, nothing else.

    >>> check_inside("stage-0.safetensors", Path("checkpoint")).as_posix()
    'checkpoint/stage-0.safetensors'

    Raises:
        OSError: the name leads out of the folder, or into another.
    """
    if file in ("", ".", "..") or "/" in file or "\0" in file:
        raise OSError(errno.EINVAL, "it is not the name of a file in this folder", f"{file:.80}")
    return folder / file


def write_inside(folder: Path, file: str, text: str, *, mode: int = 0o666) -> Path:
    """Write a file of this name into a folder, but through no link; return its path.

    Raises:
        OSError: the name leads elsewhere, or the folder has something else than a file there.
    """
    path = check_inside(file, folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(error.errno, "it is a link: remove it", str(path)) from None
    with open(descriptor, "w", encoding="utf-8") as opened:
        check_regular(os.fstat(descriptor), path)
        opened.write(text)
    return path
