"""Pass on the output of a launcher at once, without its noise, and keep the end of all of it."""

import os
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import IO

from jaxpipe.runtime.process.launcher_noise import NoiseFilter

_PIECE_BYTES = 2**16
_KEPT_PIECES = 64
_JOIN_TIMEOUT_S = 2.0
_STDERR = 2


def write_all(descriptor: int, piece: bytes) -> None:
    """Write all of a piece; nothing if the reader has closed its end, as `head` does."""
    with suppress(OSError):
        while piece:  # a pipe may take less than it is offered
            piece = piece[os.write(descriptor, piece) :]


@dataclass(slots=True, kw_only=True)
class Output:
    """The output of a process: `write` passes it on at once, `tail` is its end, at the end."""

    write: Callable[[int, bytes], None] = write_all
    tail: str = ""


class Tee:
    """Reads the pipes of a process, and copies them to stdout and stderr."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Output) -> None:
        self._output = output
        self._pieces: deque[bytes] = deque(maxlen=_KEPT_PIECES)
        # One thread per pipe: a child that fills one of them while the other is read would block.
        pipes = ((process.stdout, 1), (process.stderr, 2))
        self._threads = [
            Thread(target=self._copy, args=(pipe, number), name=f"tee {number}", daemon=True)
            for pipe, number in pipes
            if pipe is not None
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Keep the end of the output, once the process has ended.

        Its children may still have the pipes open: they are not waited for.
        """
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)
        self._output.tail = b"".join(self._pieces).decode(errors="replace")

    def _copy(self, pipe: IO[bytes], descriptor: int) -> None:
        noise = NoiseFilter() if descriptor == _STDERR else None
        with pipe:
            while piece := os.read(pipe.fileno(), _PIECE_BYTES):
                self._pieces.append(piece)
                self._output.write(descriptor, piece if noise is None else noise.feed(piece))
            self._output.write(descriptor, b"" if noise is None else noise.end())
