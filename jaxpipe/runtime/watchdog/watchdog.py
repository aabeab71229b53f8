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
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Protocol, runtime_checkable

from jaxpipe.runtime.watchdog.cause import Cause, CauseKind, write_cause
from jaxpipe.runtime.watchdog.connections import Arrivals
from jaxpipe.runtime.watchdog.culprit import Verdict, cut_off, explain, explain_late, find_culprit
from jaxpipe.runtime.watchdog.deadlines import Deadlines
from jaxpipe.runtime.watchdog.heartbeat import (
    Heartbeat,
    heartbeat_file,
    read_heartbeats,
    write_heartbeat,
)
from jaxpipe.runtime.watchdog.process_state import ProcessState, process_state
from jaxpipe.schedule import Instruction, describe

logger = logging.getLogger(__name__)

INTERVAL_S = 0.2
_LOOKS_AFTER_S = 0.4
_STALE_S = 1.6
"""A wait is noticed after 0.2 s, and heartbeats are read from 0.4 s on: with `hang_s` of 2 s, a
stopped rank is found after 2.4 s. Of the 3 s that are promised, 0.6 s remain for a busy host."""
_STARVED_S = 30.0
"""For a process that its own host sees running: a rank without a core is slow, and not stopped."""

_MARGIN_BYTES = 2048
"""For each rank: its heartbeat that is on its way, the headers of others, bytes that keep warm."""
_SAYS_AGAIN_S = 60.0
"""Between two lines about a slow link, in seconds of waits."""


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
    """The current activity of a rank; `kind` is None if its duration is not learned from."""

    kind: Hashable
    what: Instruction | str
    step: int
    since_s: float
    waits_for: tuple[int, ...] = ()


@runtime_checkable
class Exchange(Protocol):
    """Heartbeats and causes of ranks that see another folder (`HeartbeatExchange`)."""

    @property
    def heartbeats(self) -> dict[int, Heartbeat]:
        """The latest heartbeats of those ranks."""
        ...

    @property
    def received_bytes(self) -> int:
        """The bytes of all heartbeats and causes that have arrived."""
        ...

    def tick(self, mine: Heartbeat, *, waits: bool) -> None:
        """Take what has arrived, and send the heartbeat of this rank when it is due."""
        ...

    def tell(self, cause: Cause) -> None:
        """Send why the run ends."""
        ...

    def close(self) -> None:
        """End the exchange together with those ranks."""
        ...


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
        self._exchange: Exchange | None = None
        self._seen = seen
        self._deadlines = deadlines
        self._end = end
        self._doing = _Doing(kind=None, what="start", step=0, since_s=time.monotonic())
        self._host = socket.gethostname()
        self._file = heartbeat_file(seen.folder, seen.rank)
        self._stopped = Event()
        self._thread = Thread(target=self._run, name=f"watchdog of rank {seen.rank}", daemon=True)
        self._last = self._doing
        self._waited_s = 0.0
        self._slow_s = _SAYS_AGAIN_S
        margin_bytes = _MARGIN_BYTES * seen.num_ranks
        self._arrivals = arrivals or Arrivals(window_s=_STALE_S, margin_bytes=margin_bytes)
        self._beat = 0
        self._beats: dict[int, tuple[int, float]] = {}
        self._suspect: Verdict | None = None

    def at(self, instruction: Instruction) -> None:
        """Record that the rank begins an instruction, in the step of the last phase."""
        self._switch_to((instruction.op, instruction.bucket), instruction, self._doing.step)

    def phase(self, name: str, *, step: int, waits_for: tuple[int, ...] = ()) -> None:
        """Record that the rank begins something outside of its program; steps count from 0.

        Its duration depends on disks and terminals, and no deadline is learned from it. It ends
        only once the ranks in `waits_for` have come as far.
        """
        self._switch_to(None, name, step, waits_for)

    @property
    def is_watching(self) -> bool:
        """Whether it has been started, and not stopped."""
        return self._thread.is_alive() and not self._stopped.is_set()

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
            step=self._doing.step + 1,
            last_instruction=_describe(self._doing),
        )

    def keep_cause(self, cause: Cause) -> bool:
        """Write `cause.json`, unless there is one, here and for the ranks that see another folder.

        Returns whether it was written here.
        """
        is_first = write_cause(self._seen.folder, cause)
        if is_first and self._exchange is not None:
            self._exchange.tell(cause)
        return is_first

    def start(self) -> None:
        """Start to watch; call it once everything is compiled, which takes longer than any step."""
        if self._end is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        first = self._heartbeat(self._doing)
        write_heartbeat(self._file, first, num_ranks=self._seen.num_ranks)
        if self._meet is not None:
            self._exchange = self._meet()
            self._exchange.tick(first, waits=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop to watch, if it was started."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            self._file.unlink(missing_ok=True)
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

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
    ) -> None:
        # No lock: one assignment of an immutable value, which the watchdog's thread reads once.
        now_s = time.monotonic()
        before = self._doing
        self._doing = _Doing(kind=kind, what=what, step=step, since_s=now_s, waits_for=waits_for)
        if before.kind is not None:
            self._deadlines.add(before.kind, now_s - before.since_s)

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._stopped.wait(INTERVAL_S):
            now_s = time.monotonic()
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
        if self._exchange is not None:
            self._exchange.tick(mine, waits=self._waited_s >= _LOOKS_AFTER_S)
        try:
            write_heartbeat(self._file, mine, num_ranks=self._seen.num_ranks)
        except OSError:
            return  # without the folder, no rank can be judged
        # Reading the files of all ranks at every tick would load a shared file system.
        if self._waited_s >= _LOOKS_AFTER_S:
            self._look(mine, elapsed_s)
        else:
            self._beats.clear()
            self._suspect = None

    def _heartbeat(self, doing: _Doing) -> Heartbeat:
        seen, what = self._seen, doing.what
        return Heartbeat(
            rank=seen.rank,
            stage=_stage(doing, seen),
            step=doing.step + 1,
            doing=_describe(doing),
            waits_for=doing.waits_for if isinstance(what, str) else seen.waits_for(what),
            overdue=self._is_late(doing) and not self._arrivals.num_bytes,
            beat=self._beat,
            process=os.getpid(),
            host=self._host,
        )

    def _is_late(self, doing: _Doing) -> bool:
        return self._waited_s > self._deadlines.limit_s(doing.kind)

    def _count_arrivals(self) -> None:
        if self._waited_s < _LOOKS_AFTER_S:
            self._arrivals.clear()
            return
        heartbeat_bytes = 0 if self._exchange is None else self._exchange.received_bytes
        self._arrivals.update(self._waited_s, heartbeat_bytes=heartbeat_bytes)

    def _name_slow_link(
        self, mine: Heartbeat, heartbeats: dict[int, Heartbeat], elapsed_s: float
    ) -> None:
        """Say that messages arrive, but later than ever: once, and again after a minute of it."""
        self._slow_s += elapsed_s
        if not mine.waits_for or self._slow_s < _SAYS_AGAIN_S:
            return
        self._slow_s = 0.0
        late = explain_late(mine, heartbeats, waited_s=self._waited_s)
        rate = f"{self._arrivals.bytes_per_s / 1e6:.3g} MB/s"
        logger.warning("%s at %s: the link is slow, training continues", late, rate)

    def _look(self, mine: Heartbeat, elapsed_s: float) -> None:
        """Look for the rank that the others wait for.

        It is the culprit if it is found in two ticks in a row: heartbeats of different ranks are up
        to a tick apart, so that one look may see a wait that is over.
        """
        heartbeats = read_heartbeats(self._seen.folder, range(self._seen.num_ranks))
        if self._exchange is not None:
            heartbeats |= self._exchange.heartbeats
        for rank, heartbeat in heartbeats.items():
            beat, silent_s = self._beats.get(rank, (-1, 0.0))
            self._beats[rank] = (
                heartbeat.beat,
                silent_s + elapsed_s if beat == heartbeat.beat else 0.0,
            )
        if self._arrivals.num_bytes and self._is_late(self._doing):
            self._name_slow_link(mine, heartbeats, elapsed_s)
        if not mine.overdue:
            return
        # Only of ranks with a heartbeat: a rank that ends in order removes its own.
        far = set() if self._exchange is None else self._exchange.heartbeats.keys()
        stale = {
            rank
            for rank, heartbeat in heartbeats.items()
            if self._is_silent(heartbeat, is_near=rank not in far)
        }
        heartbeats[mine.rank] = mine
        verdict = find_culprit(heartbeats, start=mine.rank, stale=stale - {mine.rank})
        if verdict is not None and verdict.rank in far and not self._arrivals.is_answered:
            verdict = cut_off(verdict, mine.rank)
        if verdict is not None and verdict == self._suspect and self._end is not None:
            message = explain(verdict, heartbeats, stale=stale - {mine.rank})
            self._end(self._judge(verdict, heartbeats[verdict.rank], message))
        self._suspect = verdict

    def _is_silent(self, heartbeat: Heartbeat, *, is_near: bool) -> bool:
        """Return whether a rank has sent no heartbeat for longer than its process explains.

        The process counts if it is near, on the same disk: of others, the network may be cut.
        """
        silent_s = self._beats[heartbeat.rank][1]
        if silent_s < _STALE_S or not is_near:
            return silent_s >= _STALE_S
        is_alive = process_state(heartbeat.process, heartbeat.host) is ProcessState.ALIVE
        return not is_alive or silent_s >= _STARVED_S

    def _judge(self, verdict: Verdict, there: Heartbeat, message: str) -> Cause:
        is_link = verdict.kind is CauseKind.LINK  # no rank is to blame, and none counts as lost
        return replace(
            self.cause(verdict.kind, message),
            rank=None if is_link else there.rank,
            stage=None if is_link else there.stage,
            step=there.step,
            last_instruction=there.doing,
        )


def _describe(doing: _Doing) -> str:
    return doing.what if isinstance(doing.what, str) else describe(doing.what)


def _stage(doing: _Doing, seen: Seen) -> int:
    return seen.stage if isinstance(doing.what, str) else doing.what.stage
