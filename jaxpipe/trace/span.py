"""What happened: the spans of a run, one for each instruction that took time."""

from dataclasses import dataclass
from enum import StrEnum


class Lane(StrEnum):
    """The row within a rank on which a span is drawn."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    REDUCE = "reduce"
    UPDATE = "update"


class Truth(StrEnum):
    """How a trace came about. Every output says which."""

    MEASURED = "measured"
    EMULATED = "emulated"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one instruction of one rank took.

    `name` is what the instruction does, with the bucket of a reduction: "forward", "backward",
    "backward-input", "backward-weight", "send", "receive", "reduce stage", "update". `start_s` and
    `end_s` are seconds on the clock of rank 0. A receive lasts from the moment its rank began to
    wait; a send, from its posting to its completion. `peer` is the other rank of a message,
    `num_bytes` those of its array before a codec shortens it.
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
    """The spans of a run; `rank_names[r]` says what rank `r` holds and where."""

    truth: Truth
    rank_names: tuple[str, ...]
    spans: tuple[Span, ...]
