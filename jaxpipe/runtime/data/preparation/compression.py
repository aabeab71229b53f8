"""Compressed files of others: told by their first bytes, read as a stream in constant memory.

gzip, xz and bzip2 are read by Python, Zstandard by pyarrow, which is an optional dependency.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import open_regular, reason_of

COMPRESSED: Final = {
    ".gz": b"\x1f\x8b",
    ".xz": b"\xfd7zXZ\0",
    ".bz2": b"BZh",
    ".zst": b"\x28\xb5\x2f\xfd",
}
"""The first bytes of a file of each compression, by the end of its name."""

_READERS: Final = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DAMAGED: Final = (lzma.LZMAError, EOFError, zlib.error)


def compression_of(head: bytes) -> str | None:
    """Return how a file with this begin is compressed; None if it is not.

    >>> compression_of(gzip.compress(b"text"))
    '.gz'
    """
    return next((suffix for suffix, mark in COMPRESSED.items() if head.startswith(mark)), None)


@contextmanager
def open_decompressed(path: Path) -> Iterator[io.BufferedReader]:
    """Open the content of a file, decompressed if it is compressed.

    Raises:
        DataError: it is compressed by Zstandard, and pyarrow is not installed.
        OSError: as `open_regular`.
    """
    with ExitStack() as stack:
        file = stack.enter_context(open_regular(path))
        compression = compression_of(file.peek(8))
        if compression is None:
            yield file
            return
        content: Any
        if compression in _READERS:
            content = _READERS[compression](file, "rb")
        else:
            content = import_pyarrow(path).CompressedInputStream(file, "zstd")
        yield stack.enter_context(io.BufferedReader(content))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate the errors of reading a file.

    Raises:
        DataError: it cannot be read, decompressed or decoded.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(
            f"`source` must be UTF-8; {path} is not ({error.reason} at byte {error.start} of a "
            "read); convert it with iconv"
        ) from None
    except _DAMAGED as error:
        raise DataError(
            f"`source` must be an intact compressed file; {path} is not ({error}); compress it "
            "again"
        ) from None
    except OSError as error:
        raise DataError(
            f"`source` must be readable files; {path} is not ({reason_of(error)}); remove it, or "
            "name another"
        ) from error


def import_pyarrow(path: Path) -> Any:
    """Import pyarrow, for a file that only it reads.

    Raises:
        DataError: it is not installed.
    """
    if find_spec("pyarrow") is None:
        raise DataError(
            f"`source` {path.name} needs pyarrow, which is not installed; install it with "
            "`pip install jaxpipe[arrow]`"
        )
    return import_module("pyarrow")
