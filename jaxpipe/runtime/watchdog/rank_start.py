"""The start of each rank, for the launcher: MPI waits without end for ranks that are missing.

::

    rank 3 ──► watch/start-3.json   starting MPI ─► started      before its first heartbeat
                    │
    launcher ◄──────┘  after `run.startup_timeout_s`: ends the run, and names the ranks that lack

The file stays: it says which process a rank is, also after its last heartbeat (`stopped_ranks`).
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from jaxpipe.foreign_file import read_json
from jaxpipe.runtime.storage.atomic_write import write_at_once
from jaxpipe.runtime.watchdog.cause import Cause, CauseKind
from jaxpipe.runtime.watchdog.process_state import process_state

_INTERVAL_S, _MOST_BYTES = 1.0, 4096


class StartPhase(StrEnum):
    """How far the start of a rank is."""

    STARTING_MPI = "starting MPI"
    STARTED = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """The phase of a rank, and its process id on `host`."""

    rank: int
    phase: StartPhase
    process: int
    host: str


def write_start(folder: Path, rank: int, phase: StartPhase) -> None:
    """Say how far the start of this process, a rank, is; a disk that is full costs no more."""
    start = RankStart(rank=rank, phase=phase, process=os.getpid(), host=socket.gethostname())
    with suppress(OSError):
        write_at_once(_file(folder, rank), msgspec.json.encode(start))


def has_started(folder: Path) -> bool:
    """Return whether MPI has started, by a rank of the run in a folder: for all, or for none.

    A barrier of all ranks ends its start. What follows has timeouts of its own.
    """
    files = _file(folder, 0).parent.glob("start-*.json")
    return any(_is_over(_read(file)) for file in files)


def read_start(folder: Path, rank: int) -> RankStart | None:
    """Return the start of a rank of the run in a folder; None if it has not said anything."""
    return _read(_file(folder, rank))


class StartDeadline:
    """Judges, in a launcher, whether all its ranks have started MPI in time.

    Args:
        folder: the folder of the run, which the ranks share with the launcher.
        num_ranks: the number of ranks.
        timeout_s: the time that they have, from now on.
        clock: the time in seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_ranks: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._num_ranks = folder, num_ranks
        self._timeout_s, self._clock = timeout_s, clock
        self._begin_s = self._looked_s = clock()
        self._have_started = False

    def cause(self) -> Cause | None:
        """Return why the run has to end: ranks that did not start in time; None before that."""
        now_s = self._clock()
        if self._have_started or now_s - self._looked_s < _INTERVAL_S:
            return None
        self._looked_s = now_s
        starts = {rank: read_start(self._folder, rank) for rank in range(self._num_ranks)}
        states = {rank: _state(start) for rank, start in starts.items() if not _is_over(start)}
        if not states:
            self._have_started = True
        if self._have_started or now_s - self._begin_s < self._timeout_s:
            return None
        return self._cause(states)

    def _cause(self, states: Mapping[int, str]) -> Cause:
        """Return the cause by the states of the ranks that have not started."""
        # Ranks that wait inside of MPI wait for the others.
        missing = {rank: state for rank, state in states.items() if _WAITS not in state}
        named = ", ".join(f"rank {rank} {state}" for rank, state in (missing or states).items())
        return Cause(
            kind=CauseKind.STOPPED if missing else CauseKind.HANG,
            message=f"`run.startup_timeout_s` ({self._timeout_s:g} s) is over before MPI has "
            f"started: {named}",
            rank=next(iter(missing), None),
        )


_WAITS = "waits in the start of MPI"


def _is_over(start: RankStart | None) -> bool:
    return start is not None and start.phase is StartPhase.STARTED


def _state(start: RankStart | None) -> str:
    if start is None:
        return "has not begun"
    state = process_state(start.process, start.host)
    where = f"process {start.process} on {start.host}"
    return f"is {state} ({where})" if state.is_halted else f"{_WAITS} ({state}, {where})"


def _read(file: Path) -> RankStart | None:
    try:
        return read_json(file, RankStart, most_bytes=_MOST_BYTES)
    except (OSError, ValueError):  # not there yet, or no rank's
        return None


def _file(folder: Path, rank: int) -> Path:
    return folder / "watch" / f"start-{rank}.json"
