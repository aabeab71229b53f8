"""A file from one rank to another, in pieces, over any transport.

The receiver gets as many bytes as were announced, whatever happens at either end: a disk that fails
must not leave the other rank to its timeout. What cannot be read arrives as zeros, which match no
checksum; what cannot be written is dropped, and reported at the end.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import jax
import numpy as np

from jaxpipe.comm import FILE_TAG, Receiving, Sending, Transport
from jaxpipe.foreign_file import open_regular

_PIECE_BYTES = 2**20
_NUM_UNDER_WAY = 8
"""Pieces that are under way at once: a long link is not empty while an answer travels back."""
_SIZE = jax.ShapeDtypeStruct((1,), np.dtype(np.int64))


def send_file(transport: Transport, path: Path, *, to: int, timeout_s: float) -> None:
    """Send the bytes of a file to the rank `to`, which calls `receive_file`.

    Raises:
        DeadlineError: a piece took longer than `timeout_s`.
        TransportError: a piece could not be moved.
    """
    size = path.stat().st_size if path.exists() else 0
    sendings: deque[Sending] = deque()
    announced = transport.send(np.array([size], np.int64), to=to, tag=FILE_TAG)
    for piece in _pieces(path, size=size):
        sendings.append(transport.send(piece, to=to, tag=FILE_TAG))
        if len(sendings) >= _NUM_UNDER_WAY:
            sendings.popleft().wait(timeout_s=timeout_s)
    for sending in (announced, *sendings):
        sending.wait(timeout_s=timeout_s)


def receive_file(transport: Transport, path: Path, *, source: int, timeout_s: float) -> str:
    """Write the file that the rank `source` sends; return why it is not whole, or nothing.

    Raises:
        DeadlineError: a piece took longer than `timeout_s`.
        TransportError: a piece could not be moved.
    """
    announced = transport.receive(_SIZE, source=source, tag=FILE_TAG)
    size = int(announced.wait(timeout_s=timeout_s)[0])
    problem = ""
    arrived = _arrived(transport, size, source=source, timeout_s=timeout_s)
    try:
        with path.open("wb") as file:
            for piece in arrived:
                file.write(piece.data)
    except OSError as error:
        problem = str(error)
    for _ in arrived:  # the rest, if the disk is full
        pass
    return problem


def _pieces(path: Path, *, size: int) -> Iterator[np.ndarray]:
    """Yield the bytes of a file in pieces, and zeros for what cannot be read."""
    with ExitStack() as opened:
        file = None
        with suppress(OSError):
            file = opened.enter_context(open_regular(path))
        while size:
            piece = np.zeros(min(size, _PIECE_BYTES), np.uint8)
            with suppress(OSError):
                content = b"" if file is None else file.read(piece.size)
                piece[: len(content)] = np.frombuffer(content, np.uint8)
            yield piece
            size -= piece.size


def _arrived(
    transport: Transport, size: int, *, source: int, timeout_s: float
) -> Iterator[np.ndarray]:
    """Yield the pieces of a file of `size` bytes; receives are posted ahead."""
    posted: deque[Receiving] = deque()
    while size or posted:
        while size and len(posted) < _NUM_UNDER_WAY:
            like = jax.ShapeDtypeStruct((min(size, _PIECE_BYTES),), np.dtype(np.uint8))
            posted.append(transport.receive(like, source=source, tag=FILE_TAG))
            size -= like.shape[0]
        yield np.asarray(posted.popleft().wait(timeout_s=timeout_s))
