"""The largest resident memory of the processes that this one starts, summed over them. Linux."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

_PERIOD_S = 0.2
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
_PARENT = re.compile(r"PPid:\s+(\d+)")


@dataclass(slots=True)
class Watched:
    """The largest memory of each process so far, by its id [KiB]."""

    peaks: dict[int, int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """The sum of the largest memory of all processes; what they share counts for each."""
        return 1024 * sum(self.peaks.values())

    def look(self) -> None:
        """Read the memory of the processes below this one."""
        statuses = dict(_statuses())
        parents = {
            pid: int(found[1]) for pid, text in statuses.items() if (found := _PARENT.search(text))
        }
        for pid, text in statuses.items():
            if (peak := _PEAK.search(text)) and _is_below(pid, os.getpid(), parents):
                self.peaks[pid] = max(self.peaks.get(pid, 0), int(peak[1]))


@contextmanager
def run_watched() -> Iterator[Watched]:
    """Watch the processes that are started meanwhile, five times a second."""
    watched, ended = Watched(), Event()

    def watch() -> None:
        while not ended.wait(_PERIOD_S):
            watched.look()

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        ended.set()
        thread.join()


def _statuses() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            yield int(path.parent.name), path.read_text()
        except OSError:  # it has ended
            continue


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
        if pid == root:
            return True
    return False
