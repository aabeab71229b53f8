"""Passes on what a child process writes, at once and unchanged, and keeps the end of it."""

import os
import subprocess
from collections import deque
from contextlib import suppress
from threading import Thread
from typing import IO

_PIECE_BYTES = 2**16
_KEPT_PIECES = 64
_LATE_S = 2.0


class Tee:
    """Listens to a process that was started with pipes for stdout and stderr."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._heard: deque[bytes] = deque(maxlen=_KEPT_PIECES)
        ways = ((process.stdout, 1), (process.stderr, 2))
        self._threads = [
            Thread(target=self._listen, args=(pipe, number), name=f"listener {number}", daemon=True)
            for pipe, number in ways
            if pipe is not None
        ]
        for thread in self._threads:
            thread.start()

    def words(self) -> str:
        """Return the end of what the process has written, once it has ended.

        Processes that it has left behind may still hold its pipes: they are not waited for.
        """
        for thread in self._threads:
            thread.join(_LATE_S)
        return b"".join(self._heard).decode(errors="replace")

    def _listen(self, pipe: IO[bytes], descriptor: int) -> None:
        with pipe:
            while piece := os.read(pipe.fileno(), _PIECE_BYTES):
                self._heard.append(piece)
                with suppress(OSError):  # whoever reads us has seen enough
                    _write(descriptor, piece)


def _write(descriptor: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]
