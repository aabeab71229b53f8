"""The watchdog of one rank: it says where the rank is, and finds who holds up the run.

A thread ticks five times a second. Time is counted in ticks, none longer than two intervals: on a
crowded host, where all threads starve, a rank waits no longer than its watchdog runs.
"""

import os
import socket
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread

from jaxpipe.runtime.watchdog.cause import Cause, CauseKind
from jaxpipe.runtime.watchdog.culprit import Verdict, find_culprit
from jaxpipe.runtime.watchdog.deadline import Deadlines
from jaxpipe.runtime.watchdog.heartbeat import (
    Heartbeat,
    heartbeat_file,
    is_gone,
    read_heartbeats,
    write_heartbeat,
)
from jaxpipe.schedule import Instruction, describe

INTERVAL_S = 0.2
_LOOKS_AFTER_S = 0.4
_STALE_S = 1.6
"""A wait is seen after 0.2 s, a silence from 0.4 s on: with `hang_s` of 2 s, a rank that is stopped
is found after 2.4 s, which leaves 0.6 s of the 3 s that are promised to a crowded host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Who is watched: the rank and its first stage, of how many ranks, with the run's folder.

    `waits_for` tells which ranks an instruction waits for.
    """

    rank: int
    stage: int
    num_ranks: int
    folder: Path
    waits_for: Callable[[Instruction], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doing:
    """What a rank is at, since when; `kind` is None where its length is not learned."""

    kind: Hashable
    what: Instruction | str
    step: int
    since_s: float


class Watchdog:
    """Watches one rank from `start` to `stop`; without an `end`, it knows only where the rank is.

    `end` is called with the cause, in the watchdog's thread, when a culprit is found.
    `stop_requested` is set by whoever wants the run to stop after the step.
    """

    def __init__(
        self, seen: Seen, deadlines: Deadlines, *, end: Callable[[Cause], object] | None = None
    ) -> None:
        self.stop_requested = False
        self._seen = seen
        self._deadlines = deadlines
        self._end = end
        self._doing = _Doing(kind=None, what="start", step=0, since_s=time.monotonic())
        self._host = socket.gethostname()
        self._file = heartbeat_file(seen.folder, seen.rank)
        self._stopped = Event()
        self._thread = Thread(target=self._run, name=f"watch of rank {seen.rank}", daemon=True)
        self._last = self._doing
        self._waited_s = 0.0
        self._beat = 0
        self._beats: dict[int, tuple[int, float]] = {}
        self._suspect: Verdict | None = None

    def at(self, instruction: Instruction) -> None:
        """Tell that the rank begins an instruction, in the step of the last phase."""
        self._turn((instruction.op, instruction.bucket), instruction, self._doing.step)

    def phase(self, name: str, *, step: int) -> None:
        """Tell that the rank begins something outside of its program; steps count from 0.

        How long that takes depends on disks and terminals, and is not learned.
        """
        self._turn(None, name, step)

    @property
    def is_watching(self) -> bool:
        """Whether it has been started, and not stopped."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def has_lost_a_rank(self) -> bool:
        """Return whether a rank of this host is gone, and not in order; any thread may ask."""
        pulses = read_heartbeats(self._seen.folder, range(self._seen.num_ranks))
        return any(is_gone(pulse) for pulse in pulses.values())

    def cause(self, kind: CauseKind, message: str) -> Cause:
        """Return a cause that lies where the rank is now."""
        return Cause(
            kind=kind,
            message=message,
            rank=self._seen.rank,
            stage=_stage(self._doing, self._seen),
            step=self._doing.step + 1,
            last_instruction=_words(self._doing),
        )

    def start(self) -> None:
        """Begin to watch: all is compiled, and what takes long now takes too long."""
        if self._end is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_heartbeat(self._file, self._pulse(self._doing))
        self._thread.start()

    def stop(self) -> None:
        """End to watch; does nothing where nothing was watched."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            self._file.unlink(missing_ok=True)

    def _turn(self, kind: Hashable, what: Instruction | str, step: int) -> None:
        now_s = time.monotonic()
        before = self._doing
        self._doing = _Doing(kind=kind, what=what, step=step, since_s=now_s)
        if before.kind is not None:
            self._deadlines.add(before.kind, now_s - before.since_s)

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._stopped.wait(INTERVAL_S):
            now_s = time.monotonic()
            self._tick(min(now_s - before_s, 2 * INTERVAL_S))
            before_s = now_s

    def _tick(self, elapsed_s: float) -> None:
        doing = self._doing
        self._waited_s = self._waited_s + elapsed_s if doing is self._last else 0.0
        self._last = doing
        self._beat += 1
        mine = self._pulse(doing)
        try:
            write_heartbeat(self._file, mine)
        except OSError:
            return
        if self._waited_s >= _LOOKS_AFTER_S:
            self._look(mine, elapsed_s)
        else:
            self._beats.clear()
            self._suspect = None

    def _pulse(self, doing: _Doing) -> Heartbeat:
        seen, what = self._seen, doing.what
        return Heartbeat(
            rank=seen.rank,
            stage=_stage(doing, seen),
            step=doing.step + 1,
            doing=_words(doing),
            waits_for=() if isinstance(what, str) else seen.waits_for(what),
            overdue=self._waited_s > self._deadlines.limit_s(doing.kind),
            beat=self._beat,
            process=os.getpid(),
            host=self._host,
        )

    def _look(self, mine: Heartbeat, elapsed_s: float) -> None:
        """Look for the one that all wait for; who is found twice in a row is the culprit."""
        pulses = read_heartbeats(self._seen.folder, range(self._seen.num_ranks))
        for rank, pulse in pulses.items():
            beat, silent_s = self._beats.get(rank, (-1, 0.0))
            self._beats[rank] = (pulse.beat, silent_s + elapsed_s if beat == pulse.beat else 0.0)
        if not mine.overdue:
            return
        stale = {rank for rank, (_, silent_s) in self._beats.items() if silent_s >= _STALE_S}
        pulses[mine.rank] = mine
        found = find_culprit(pulses, start=mine.rank, stale=stale - {mine.rank})
        if found is not None and found == self._suspect and self._end is not None:
            self._end(self._judge(found, pulses[found.rank]))
        self._suspect = found

    def _judge(self, found: Verdict, there: Heartbeat) -> Cause:
        chain = " waits for ".join(f"rank {rank}" for rank in found.chain)
        words = {
            CauseKind.HANG: "has done this for too long",
            CauseKind.STOPPED: "gives no sign of life",
            CauseKind.DEADLOCK: "waits in a circle",
        }
        message = f"it {words[found.kind]}; {chain}" if len(found.chain) > 1 else words[found.kind]
        return replace(
            self.cause(found.kind, message),
            rank=there.rank,
            stage=there.stage,
            step=there.step,
            last_instruction=there.doing,
        )


def _words(doing: _Doing) -> str:
    return doing.what if isinstance(doing.what, str) else describe(doing.what)


def _stage(doing: _Doing, seen: Seen) -> int:
    return seen.stage if isinstance(doing.what, str) else doing.what.stage
