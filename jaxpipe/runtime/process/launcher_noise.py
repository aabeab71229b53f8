"""What an MPI launcher prints about ranks that have ended, taken out of its standard error.

The rank that failed has said why in one line, or jaxpipe says it for a rank that was killed. Open
MPI adds blocks between two lines of dashes, some with a zero byte::

    --------------------------------------------------------------------------
    MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
    ...
    --------------------------------------------------------------------------
"""

import re

_RULE = re.compile(rb"-{60,}\s*")
_OURS = re.compile(
    rb"MPI_ABORT was invoked|exited on\s+signal"
    rb"|(prterun|mpirun|mpiexec)(\.\w+)? (has exited due to|noticed that) process"
)
_OUR_LINE = b"Abort is in progress"
_MOST_LINES = 40
"""A longer block is none: a program may print a line of dashes, too."""


class NoiseFilter:
    r"""Passes bytes on as they come, without the launcher's blocks about ranks that have ended.

    >>> noise = NoiseFilter()
    >>> rule = b"-" * 74 + b"\n"
    >>> noise.feed(b"a warning\n" + rule + b"MPI_ABORT was invoked on rank 2\n")
    b'a warning\n'
    >>> noise.feed(rule + b"another") + noise.end()
    b'another'
    """

    def __init__(self) -> None:
        self._partial = b""
        self._block: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Return what is to be passed on now; a block is held back until it ends."""
        *lines, self._partial = (self._partial + data.replace(b"\0", b"")).split(b"\n")
        passed = b"".join(self._line(line + b"\n") for line in lines)
        if self._block or self._partial.startswith(b"-"):
            return passed
        rest, self._partial = self._partial, b""
        return passed + rest

    def end(self) -> bytes:
        """Return what is held back, at the end of the output."""
        pending = b"".join(self._block) + self._partial
        self._block, self._partial = [], b""
        return b"" if _OURS.search(pending) else pending

    def _line(self, line: bytes) -> bytes:
        is_rule = _RULE.fullmatch(line) is not None
        if not self._block and not is_rule:
            return b"" if _OUR_LINE in line else line
        self._block.append(line)
        if (not is_rule or len(self._block) == 1) and len(self._block) <= _MOST_LINES:
            return b""
        block, self._block = b"".join(self._block), []
        return b"" if is_rule and _OURS.search(block) else block
