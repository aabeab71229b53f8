"""How long ranks send no heartbeat, and what their processes do meanwhile: dead, stopped, or slow.

::

    silent for    process on this host               process elsewhere
    1.6 s         gone; stopped, and its processor   a rank there sees it stopped; its kernel
                  time stands still: dead            acknowledges nothing: dead
    5 gaps                                           dead
    30 s          all threads wait, or it has used   dead
                  seconds of a core: dead
    longer        waits for a core or a disk: slow

A rank that gets a thousandth of a core beats once in some seconds, and is slow: it is not dead. No
rank sees the process of one that is alone on its host. So each heartbeat has the longest gap before
one lately, at least 0.2 s: a rank that was late is expected to be late.

Source: Hayashibara et al., "The phi accrual failure detector", SRDS 2004, for detectors that learn.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from jaxpipe.runtime.watchdog.heartbeat import Heartbeat
from jaxpipe.runtime.watchdog.process_state import (
    ProcessLook,
    ProcessState,
    look_at,
    process_state,
)

STALE_S = 1.6
"""A wait is noticed after 0.2 s, and heartbeats are read from 0.4 s on: with `hang_s` of 2 s, a
stopped rank is found after 2.4 s. Of the 3 s that are promised, 0.6 s remain for a busy host."""
_LOOKS_AFTER_S = 0.1
"""Of silence: each look reads a file for each thread."""
_STILL_S = 1.1
"""Of a stopped process without processor time, from the first look on: some programs limit a
process by signals, most of them more often than once in a second."""
_STARVED_S = 30.0
"""For a process that is not seen to be dead: a rank without a core is slow, and not stopped."""
_NUM_GAPS = 5.0
_MOST_PROCESSOR_S = 5.0
"""Without a heartbeat, which takes a thousandth of it: the process computes, and its threads do
not get the interpreter's lock any more."""

_NOTHING = ProcessLook(state=ProcessState.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The seconds since the last heartbeat of a rank, and the looks at its process since then.

    `gap_s` is that of the heartbeat.
    `still_s` are the seconds since its processor time last changed, `num_busy` the looks in which
    it waited for a core or a disk, `used_s` the processor time since the last heartbeat.
    """

    beat: int
    gap_s: float = 0.0
    silent_s: float = 0.0
    still_s: float = 0.0
    last: ProcessLook = _NOTHING
    used_s: float = 0.0
    num_busy: int = 0
    num_looks: int = 0

    def after(self, look: ProcessLook | None, elapsed_s: float) -> "Silence":
        """Return the silence `elapsed_s` later, with another look or without."""
        if look is None:
            return replace(self, silent_s=self.silent_s + elapsed_s)
        is_first = self.num_looks == 0
        used_s = 0.0 if is_first else max(0.0, look.processor_s - self.last.processor_s)
        moves = is_first or used_s > 0.0
        is_busy = look.state.is_busy or (look.state is ProcessState.STOPPED and moves)
        return replace(
            self,
            silent_s=self.silent_s + elapsed_s,
            still_s=0.0 if moves else self.still_s + elapsed_s,
            last=look,
            used_s=self.used_s + used_s,
            num_busy=self.num_busy + is_busy,
            num_looks=self.num_looks + 1,
        )

    @property
    def is_starved(self) -> bool:
        """Whether the process could continue, and gets no core, or no disk."""
        return 2 * self.num_busy >= self.num_looks > 0 and self.used_s < _MOST_PROCESSOR_S

    def is_dead(self, *, is_answered: bool, is_reported: bool) -> bool:
        """Return whether the rank will send no heartbeat any more.

        Args:
            is_answered: whether the kernel of its host acknowledges what is sent there.
            is_reported: whether a rank on its host sees that its process is stopped or gone.
        """
        if self.silent_s < STALE_S:
            return False
        if not is_answered:
            return True
        match self.last.state:
            case ProcessState.GONE:
                return True
            case ProcessState.STOPPED:
                # Stopped and continued in turn, it moves.
                return self.still_s >= _STILL_S
            case ProcessState.UNKNOWN:
                return is_reported or self.silent_s >= min(_NUM_GAPS * self.gap_s, _STARVED_S)
            case _:
                return self.silent_s >= _STARVED_S and not self.is_starved


class Silences:
    """The silence of each rank, as one rank sees it; a thread of it calls `update` at each tick."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Silence] = {}

    def clear(self) -> None:
        """Forget them: the wait of this rank is over."""
        self._by_rank.clear()

    def update(
        self, heartbeats: Iterable[Heartbeat], elapsed_s: float, *, looks: bool = True
    ) -> None:
        """Take heartbeats, `elapsed_s` after the last ones; look at processes without a new one.

        Processes on other hosts cannot be seen. Without `looks`, none is looked at: many ranks on
        a host would do little else in long waits.
        """
        for heartbeat in heartbeats:
            before = self._by_rank.get(heartbeat.rank)
            if before is None or before.beat != heartbeat.beat:
                silence = Silence(beat=heartbeat.beat, gap_s=heartbeat.gap_s)
                self._by_rank[heartbeat.rank] = silence
            else:
                is_late = looks and before.silent_s >= _LOOKS_AFTER_S
                look = look_at(heartbeat.process, heartbeat.host) if is_late else None
                self._by_rank[heartbeat.rank] = before.after(look, elapsed_s)

    def dead(self, heartbeats: Mapping[int, Heartbeat], *, unanswered: Set[int]) -> Set[int]:
        """Return the ranks that will send no heartbeat any more.

        Args:
            heartbeats: the last one of each rank.
            unanswered: ranks on other hosts, whose kernels acknowledge nothing.
        """
        reported = _reported(heartbeats)
        return {
            rank
            for rank in heartbeats.keys() & self._by_rank.keys()
            if self._by_rank[rank].is_dead(
                is_answered=rank not in unanswered, is_reported=rank in reported
            )
        }

    def halted(self, heartbeats: Mapping[int, Heartbeat]) -> tuple[int, ...]:
        """Return the dead ranks whose processes this host sees, and others do not."""
        dead = self.dead(heartbeats, unanswered=frozenset())
        return tuple(r for r in sorted(dead) if self._by_rank[r].last.state.is_halted)

    def describe(self, rank: int, heartbeats: Mapping[int, Heartbeat]) -> str:
        """Return what the process of a rank does, and since when it is silent, for a message.

        >>> heartbeat = Heartbeat(rank=1, stage=0, step=1, doing="forward", waits_for=(), beat=7,
        ...                       overdue=False, process=42, host="node-1")
        >>> Silences().describe(1, {1: heartbeat})
        'rank 1 on node-1 sends heartbeats'
        >>> Silences().describe(1, {1: heartbeat, 2: replace(heartbeat, rank=2, halted=(1,))})
        'rank 1 is stopped (process 42 on node-1)'
        """
        if (heartbeat := heartbeats.get(rank)) is None:
            return f"rank {rank} has sent no heartbeat"
        silence = self._by_rank.get(rank, Silence(beat=heartbeat.beat))
        since = f"no heartbeat for {silence.silent_s:.1f} s" if silence.silent_s > STALE_S else ""
        state = process_state(heartbeat.process, heartbeat.host)
        if state is ProcessState.UNKNOWN and rank in _reported(heartbeats):
            state = ProcessState.STOPPED
        if state is ProcessState.UNKNOWN:
            return f"rank {rank} on {heartbeat.host} sends {since or 'heartbeats'}"
        where = f"process {heartbeat.process} on {heartbeat.host}"
        return f"rank {rank} is {state} ({where}{', ' * bool(since)}{since})"


def _reported(heartbeats: Mapping[int, Heartbeat]) -> Set[int]:
    """Return the ranks whose processes another rank on their host sees stopped, or gone."""
    return {rank for heartbeat in heartbeats.values() for rank in heartbeat.halted}
