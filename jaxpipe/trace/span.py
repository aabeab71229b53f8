"""Traces: the spans of a run, one for each instruction that took time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Lane(StrEnum):
    """The row within a rank on which a span is drawn."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    REDUCE = "reduce"
    UPDATE = "update"


class Truth(StrEnum):
    """The origin of a trace. Every output is labelled with it."""

    MEASURED = "measured"
    EMULATED = "emulated"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time of one instruction of one rank.

    `name` is the operation, with the bucket of a reduction: "forward", "backward",
    "backward-input", "backward-weight", "send", "receive", "reduce stage", "update". `start_s` and
    `end_s` are seconds on the clock of rank 0. `step` counts from 1, as in logs and metrics. A
    receive lasts from the moment its rank began to wait; a send, from its posting to its
    completion. `peer` is the other rank of a message, `num_bytes` the size of its array before a
    codec compresses it.
    """

    rank: int
    lane: Lane
    name: str
    start_s: float
    end_s: float
    step: int
    stage: int
    microbatch: int | None = None
    peer: int | None = None
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The spans of a run; `rank_names[r]` names the stages and the device of rank `r`.

    `about` names what is emulated, if anything is. `bubbles` are the steps whose bubble the run has
    measured itself, with that bubble: the figure of its log and its metrics.
    """

    truth: Truth
    rank_names: tuple[str, ...]
    spans: tuple[Span, ...]
    about: str = ""
    bubbles: tuple[tuple[int, float], ...] = ()

    @property
    def label(self) -> str:
        """The truth of the trace, with what is emulated.

        >>> Trace(truth=Truth.EMULATED, rank_names=(), spans=(), about="links of case1").label
        'emulated: links of case1'
        """
        return f"{self.truth}: {self.about}" if self.about else self.truth.value


def messages(trace: Trace) -> tuple[tuple[Span, Span], ...]:
    """Return the send and the receive of each message of which the trace has both.

    They agree on step, source rank, destination rank and microbatch, and are of neighbouring
    stages: two ranks with several chunks exchange several messages of a microbatch. Where several
    messages do, as those of a step's training and of its evaluation may, the first sent is the
    first received.
    """
    sends: defaultdict[_Key, list[Span]] = defaultdict(list)
    receives: defaultdict[_Key, list[Span]] = defaultdict(list)
    for span in sorted(trace.spans, key=lambda other: other.start_s):
        if span.lane is Lane.SEND and span.peer is not None:
            sends[span.step, span.rank, span.peer, span.microbatch].append(span)
        elif span.lane is Lane.RECEIVE and span.peer is not None:
            receives[span.step, span.peer, span.rank, span.microbatch].append(span)
    return tuple(pair for key in sends for pair in _paired(sends[key], receives.get(key, [])))


_Key: TypeAlias = tuple[int, int, int | None, int | None]


def _paired(sends: Sequence[Span], receives: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Pair each receive with the first send to its stage that is left; both are in their order.

    A trace may have lost one end, with a killed rank for example.
    """
    left = list(sends)
    for received in receives:
        near = (n for n, sent in enumerate(left) if abs(sent.stage - received.stage) == 1)
        if (position := next(near, None)) is not None:
            yield left.pop(position), received


def rows(spans: Sequence[Span]) -> tuple[int, ...]:
    """Return for each span a row on which no other span overlaps it.

    A span takes the first row that is free when it starts, so there are as many rows as spans are
    open at the same time::

        row 0   ├─ a ──┤   ├── d ──┤
        row 1      ├─ b ─┤
        row 2        ├── c ──┤

    Cost: the number of spans times that of rows.
    """
    placed = [0] * len(spans)
    ends_s: list[float] = []
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].start_s, spans[i].end_s)):
        free = (row for row, end_s in enumerate(ends_s) if end_s <= spans[index].start_s)
        row = next(free, len(ends_s))
        ends_s[row : row + 1] = [spans[index].end_s]  # replaces an end, or appends a row
        placed[index] = row
    return tuple(placed)
