"""The order in which a host runs segments, and the time that a step then takes.

Compute and communication are one resource each. A collective starts when its operand is there and
the one before it is over; a segment when its collectives are over and the one before it is
computed. Of the segments that could start first, that with the most behind it goes first. For two
halves this gives the alternation of a duplex, forward and backward::

    compute    a0   b0   a1   b1   ...
    links           a0   b0   a1   ...

Source: list scheduling by critical path (Graham 1969). With equal halves, stage by stage, it takes
what Zhang et al., "HiDup", SoCC 2022, equations 4 and 5, say with overlap in both directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpipe.baselines.autoshard.spmd.host_program import HostProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSchedule:
    """The order of segments and of collectives, and the seconds of a step, simulated."""

    segments: tuple[int, ...]
    collectives: tuple[int, ...]
    seconds: float


def schedule_of(
    program: HostProgram, segment_s: Sequence[float], collective_s: Sequence[float]
) -> HostSchedule:
    """Return the order for these seconds of each segment and of each collective."""
    state = _Simulation(
        program=program,
        segment_s=segment_s,
        collective_s=collective_s,
        behind=_behind(program, segment_s, collective_s),
        segment_end={},
        collective_end={},
    )
    state.start_collectives(None)
    while len(state.segment_end) < len(program.segments):
        state.compute(state.next_segment())
    return HostSchedule(
        segments=tuple(state.segment_end),
        collectives=tuple(state.collective_end),
        seconds=max((*state.segment_end.values(), *state.collective_end.values()), default=0.0),
    )


@dataclass(slots=True, kw_only=True)
class _Simulation:
    """Times so far; dictionaries are in the order in which things run."""

    program: HostProgram
    segment_s: Sequence[float]
    collective_s: Sequence[float]
    behind: Sequence[float]
    segment_end: dict[int, float]
    collective_end: dict[int, float]
    compute_free_s: float = 0.0
    links_free_s: float = 0.0

    def next_segment(self) -> int:
        """Return the segment that can start first; of several that with the most behind it."""
        starts: dict[int, float] = {}
        for index, segment in enumerate(self.program.segments):
            if index in self.segment_end or not self._is_known(segment.after, segment.collectives):
                continue
            ends = [self.collective_end[collective] for collective in segment.collectives]
            starts[index] = max(self.compute_free_s, *ends, 0.0)
        return min(starts, key=lambda index: (starts[index], -self.behind[index], index))

    def compute(self, index: int) -> None:
        """Run a segment, and start the collectives of what it makes."""
        segment = self.program.segments[index]
        ends = [self.collective_end[collective] for collective in segment.collectives]
        self.compute_free_s = max(self.compute_free_s, *ends, 0.0) + self.segment_s[index]
        self.segment_end[index] = self.compute_free_s
        self.start_collectives(index)

    def start_collectives(self, segment: int | None) -> None:
        """Start the collectives whose operand this segment has made, or which are arguments."""
        for number, collective in enumerate(self.program.collectives):
            if collective.segment == segment:
                begin = max(self.links_free_s, self.compute_free_s)
                self.links_free_s = begin + self.collective_s[number]
                self.collective_end[number] = self.links_free_s

    def _is_known(self, after: Sequence[int], collectives: Sequence[int]) -> bool:
        return all(segment in self.segment_end for segment in after) and all(
            collective in self.collective_end for collective in collectives
        )


def _behind(
    program: HostProgram, segment_s: Sequence[float], collective_s: Sequence[float]
) -> list[float]:
    """Return the seconds of the longest way from the start of each segment to the end."""
    readers: dict[int, list[int]] = {}
    waiting: dict[int, list[int]] = {}
    for index, segment in enumerate(program.segments):
        for earlier in segment.after:
            readers.setdefault(earlier, []).append(index)
        for earlier in segment.collectives:
            waiting.setdefault(earlier, []).append(index)
    sent: dict[int | None, list[int]] = {}
    for number, collective in enumerate(program.collectives):
        sent.setdefault(collective.segment, []).append(number)
    known: dict[int, float] = {}

    def way(index: int) -> float:
        if index not in known:
            ends = [way(reader) for reader in readers.get(index, [])]
            for number in sent.get(index, []):
                later = max((way(reader) for reader in waiting.get(number, [])), default=0.0)
                ends.append(collective_s[number] + later)
            known[index] = segment_s[index] + max(ends, default=0.0)
        return known[index]

    return [way(index) for index in range(len(program.segments))]
