"""The named points of a save, each just before a call that changes the disk or flushes it.

Python's audit hooks (`sys.addaudithook`) announce these calls, so the code that saves needs no
hooks. A point is reached when such a call on such a path is announced for the `count`-th time in
one save.
"""

import os
import re
import signal
import sys
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A system call: its audit event, and a pattern for the end of its path."""

    event: str
    path: str
    count: int = 1

    def matches(self, event: str, path: str) -> bool:
        r"""Return whether an event announces this call.

        >>> Call(event="os.mkdir", path=r"step-\d+").matches("os.mkdir", "run/step-00000001")
        True
        """
        return event == self.event and re.search(f"(^|/){self.path}$", path) is not None


class SavePoint(Enum):
    """The points at which a save may be cut off."""

    BEFORE_FOLDER = Call(event="os.mkdir", path=r"step-\d+\.partial")
    SHARD_NOT_FLUSHED = Call(event="open", path=r"stage-0\.safetensors")
    OTHER_SHARD_NOT_FLUSHED = Call(event="open", path=r"stage-1\.safetensors")
    BEFORE_MANIFEST = Call(event="open", path=r"manifest\.json\.partial")
    # The second `open` is that of the flush.
    MANIFEST_NOT_FLUSHED = Call(event="open", path=r"manifest\.json\.partial", count=2)
    MANIFEST_NOT_NAMED = Call(event="os.rename", path=r"manifest\.json\.partial")
    BEFORE_MANIFEST_IS_READ_BACK = Call(event="open", path=r"manifest\.json")
    OLDER_OF_SAME_STEP_NOT_ASIDE = Call(event="os.rename", path=r"step-\d+")
    BEFORE_COMMIT = Call(event="os.rename", path=r"step-\d+\.partial")
    COMMIT_NOT_FLUSHED = Call(event="open", path="checkpoints", count=2)
    BEFORE_REMOVING_A_MANIFEST = Call(event="os.remove", path=r"manifest\.json")
    BEFORE_REMOVING_A_SHARD = Call(event="os.remove", path=r"stage-\d\.safetensors")
    BEFORE_REMOVING_A_FOLDER = Call(event="os.rmdir", path=r"step-\d+(\.replaced)?")


class Cutoff:
    """Audit hook that kills this process at a point of a save, once it is armed."""

    def __init__(self, point: SavePoint) -> None:
        self._call: Call = point.value
        self._num_seen = 0
        self._is_armed = False
        sys.addaudithook(self._audit)  # which can never be removed

    def arm(self) -> None:
        """Make the next save that reaches the point the last one."""
        self._num_seen = 0
        self._is_armed = True

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        # Called for every audited event of the process: the cheap tests come first.
        if not self._is_armed or event != self._call.event:
            return
        path = arguments[0]
        if not isinstance(path, str | os.PathLike):  # `open` of a descriptor
            return
        if self._call.matches(event, os.fsdecode(path)):
            self._num_seen += 1
            if self._num_seen == self._call.count:
                os.kill(os.getpid(), signal.SIGKILL)
