"""The watchdog of one rank: it writes heartbeats, and finds the rank that blocks the run.

Ranks on one disk read each other's files; others exchange messages (`heartbeat_exchange`).

A thread ticks five times a second. Time is counted in ticks, none longer than two intervals: on an
overloaded host, where all threads starve, a rank appears to wait no longer than its watchdog runs.

A rank is not overdue while messages arrive for it (`connections`): its link is slow, and a line
says so.
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread

from jaxpipe.runtime.watchdog.cause import Cause, CauseKind, write_cause
from jaxpipe.runtime.watchdog.connections import Arrivals
from jaxpipe.runtime.watchdog.deadlines import Deadlines
from jaxpipe.runtime.watchdog.heartbeat import (
    Heartbeat,
    heartbeat_file,
    read_heartbeats,
    write_heartbeat,
)
from jaxpipe.runtime.watchdog.other_ranks import Exchange, Judged, OtherRanks, Sight
from jaxpipe.runtime.watchdog.process_state import ProcessState, process_state
from jaxpipe.runtime.watchdog.silence import STALE_S
from jaxpipe.schedule import Instruction, describe

logger = logging.getLogger(__name__)

INTERVAL_S = 0.2
_LOOKS_AFTER_S = 0.4
_NUM_GAPS = 300
"""The heartbeats of a minute."""

_MARGIN_BYTES = 2048
"""For each rank: its heartbeat that is on its way, the headers of others, bytes that keep warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The rank that is watched, its first stage, the number of ranks, and the run's folder.

    `waits_for` returns the ranks that an instruction waits for.
    """

    rank: int
    stage: int
    num_ranks: int
    folder: Path
    waits_for: Callable[[Instruction], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doing:
    """The current activity of a rank; `kind` is None if its duration is not learned from.

    A `limit_s` takes the place of the deadline of its kind. Steps count from 0; -1 is the start.
    """

    kind: Hashable
    what: Instruction | str
    step: int
    since_s: float
    waits_for: tuple[int, ...] = ()
    limit_s: float | None = None


class Watchdog:
    """Watches one rank from `start` to `stop`; without an `end`, it only tracks the rank.

    The callback `end` receives the cause, in the watchdog's thread, when a culprit is found. Set
    `stop_requested` to stop the run after the current step. `meet` begins the exchange with ranks
    that do not see the folder; by default all do. `arrivals` are those of this process.
    """

    def __init__(
        self,
        seen: Seen,
        deadlines: Deadlines,
        *,
        end: Callable[[Cause], object] | None = None,
        meet: Callable[[], Exchange] | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.stop_requested = self.is_finished = False
        self._meet = meet
        self._seen = seen
        self._deadlines = deadlines
        self._end = end
        self._doing = _Doing(kind=None, what="start", step=-1, since_s=time.monotonic())
        self._host = socket.gethostname()
        self._file = heartbeat_file(seen.folder, seen.rank)
        self._stopped = Event()
        self._thread = Thread(target=self._run, name=f"watchdog of rank {seen.rank}", daemon=True)
        self._last = self._doing
        self._waited_s = 0.0
        self._others = OtherRanks(seen.folder, num_ranks=seen.num_ranks)
        margin_bytes = _MARGIN_BYTES * seen.num_ranks
        self._arrivals = arrivals or Arrivals(window_s=STALE_S, margin_bytes=margin_bytes)
        self._beat = 0
        self._gaps_s = deque([INTERVAL_S], maxlen=_NUM_GAPS)

    def at(self, instruction: Instruction) -> None:
        """Record that the rank begins an instruction, in the step of the last phase."""
        self._switch_to((instruction.op, instruction.bucket), instruction, self._doing.step)

    def phase(
        self,
        name: str,
        *,
        step: int,
        waits_for: tuple[int, ...] = (),
        limit_s: float | None = None,
    ) -> None:
        """Record that the rank begins something outside of its program; steps count from 0.

        Its duration depends on disks and terminals, and no deadline is learned from it; `limit_s`
        is its own. It ends only once the ranks in `waits_for` have come as far. Before the first
        step, `step` is -1.
        """
        self._switch_to(None, name, step, waits_for, limit_s)

    @property
    def rank(self) -> int:
        """The rank that is watched."""
        return self._seen.rank

    @property
    def is_watching(self) -> bool:
        """Whether the first step has begun, and it has been started, and not stopped."""
        return self._doing.step >= 0 and self._thread.is_alive() and not self._stopped.is_set()

    def has_lost_a_rank(self) -> bool:
        """Return whether a process of a rank on this host has died; any thread may call this."""
        heartbeats = read_heartbeats(self._seen.folder, range(self._seen.num_ranks))
        return any(
            process_state(heartbeat.process, heartbeat.host) is ProcessState.GONE
            for heartbeat in heartbeats.values()
        )

    def cause(self, kind: CauseKind, message: str) -> Cause:
        """Return a cause with the current instruction of the rank."""
        return Cause(
            kind=kind,
            message=message,
            rank=self._seen.rank,
            stage=_stage(self._doing, self._seen),
            step=self._doing.step + 1 or None,
            last_instruction=_describe(self._doing),
        )

    def keep_cause(self, cause: Cause) -> bool:
        """Write `cause.json`, unless there is one, here and for the ranks that see another folder.

        Returns whether it was written here.
        """
        is_first = write_cause(self._seen.folder, cause)
        if is_first and self._others.exchange is not None:
            self._others.exchange.tell(cause)
        return is_first

    def start(self) -> None:
        """Start to watch, once; call it before the stages are compiled."""
        if self._end is None or self._thread.is_alive():
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        first = self._heartbeat(self._doing)
        write_heartbeat(self._file, first, num_ranks=self._seen.num_ranks)
        if self._meet is not None:
            self._others.exchange = self._meet()
            self._others.exchange.tick(first, waits=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop to watch, if it was started."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            self._file.unlink(missing_ok=True)
        if self._others.exchange is not None:
            self._others.exchange.close()
            self._others.exchange = None

    def finish(self) -> None:
        """Stop to watch a run whose last checkpoint is saved: a signal has nothing left to stop."""
        self.is_finished = True
        self.stop()

    def _switch_to(
        self,
        kind: Hashable,
        what: Instruction | str,
        step: int,
        waits_for: tuple[int, ...] = (),
        limit_s: float | None = None,
    ) -> None:
        # No lock: one assignment of an immutable value, which the watchdog's thread reads once.
        now_s = time.monotonic()
        before = self._doing
        self._doing = _Doing(
            kind=kind, what=what, step=step, since_s=now_s, waits_for=waits_for, limit_s=limit_s
        )
        if before.kind is not None:
            self._deadlines.add(before.kind, now_s - before.since_s)

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._stopped.wait(INTERVAL_S):
            now_s = time.monotonic()
            self._gaps_s.append(now_s - before_s)
            try:
                # Bounded: a process that was stopped itself must not count that time as a wait.
                self._tick(min(now_s - before_s, 2 * INTERVAL_S))
            except Exception:
                # A watchdog that ends without a word leaves the run to wait for its timeouts.
                logger.exception("the watchdog of rank %d continues after", self._seen.rank)
            before_s = now_s

    def _tick(self, elapsed_s: float) -> None:
        doing = self._doing
        self._waited_s = self._waited_s + elapsed_s if doing is self._last else 0.0
        self._last = doing
        self._beat += 1  # also while the rank waits: it shows that the process runs
        self._count_arrivals()
        mine = self._heartbeat(doing)
        if self._others.exchange is not None:
            self._others.exchange.tick(mine, waits=self._waited_s >= _LOOKS_AFTER_S)
        try:
            write_heartbeat(self._file, mine, num_ranks=self._seen.num_ranks)
        except OSError:
            return  # without the folder, no rank can be judged
        # Reading the files of all ranks at every tick would load a shared file system.
        if self._waited_s >= _LOOKS_AFTER_S:
            self._look(mine, elapsed_s)
        else:
            self._others.clear()

    def _heartbeat(self, doing: _Doing) -> Heartbeat:
        seen, what = self._seen, doing.what
        return Heartbeat(
            rank=seen.rank,
            stage=_stage(doing, seen),
            step=doing.step + 1,
            doing=_describe(doing),
            waits_for=doing.waits_for if isinstance(what, str) else seen.waits_for(what),
            overdue=self._waited_s > self._limit_s(doing) and not self._arrivals.num_bytes,
            beat=self._beat,
            process=os.getpid(),
            host=self._host,
            halted=self._others.halted,
            gap_s=round(max(self._gaps_s.copy()), 2),
        )

    def _limit_s(self, doing: _Doing) -> float:
        return self._deadlines.limit_s(doing.kind) if doing.limit_s is None else doing.limit_s

    def _count_arrivals(self) -> None:
        if self._waited_s < _LOOKS_AFTER_S:
            self._arrivals.clear()
            return
        heartbeat_bytes = (
            0 if self._others.exchange is None else self._others.exchange.received_bytes
        )
        self._arrivals.update(self._waited_s, heartbeat_bytes=heartbeat_bytes)

    def _look(self, mine: Heartbeat, elapsed_s: float) -> None:
        """Look for the rank that the others wait for, and end the job if there is one."""
        waited_s = self._waited_s
        sight = Sight(
            arrivals=self._arrivals,
            waited_s=waited_s,
            elapsed_s=elapsed_s,
            left_s=self._limit_s(self._doing) - waited_s,
        )
        judged = self._others.look(mine, sight)
        if judged is not None and self._end is not None:
            self._end(self._judge(judged))

    def explain_wait(self) -> str:
        """Return how the ranks are that this rank waits for, "" if it waits for none."""
        return self._others.explain_wait(self._heartbeat(self._doing))

    def _judge(self, judged: Judged) -> Cause:
        there, kind = judged.heartbeat, judged.verdict.kind
        is_link = kind is CauseKind.LINK  # no rank is to blame, and none counts as lost
        return replace(
            self.cause(kind, judged.message),
            rank=None if is_link else there.rank,
            stage=None if is_link else there.stage,
            step=there.step or None,
            last_instruction=there.doing,
        )


def _describe(doing: _Doing) -> str:
    return doing.what if isinstance(doing.what, str) else describe(doing.what)


def _stage(doing: _Doing, seen: Seen) -> int:
    return seen.stage if isinstance(doing.what, str) else doing.what.stage
