"""One step of one rank, and what ranks do in which order: instruction, program, schedule.

Instructions speak of stages, never of ranks: every replica runs the same programs, and the plan
says which rank holds which stage. A message is known by the stages it joins, its direction and its
microbatch, so schedules with several chunks to a rank need no new words.
"""

from dataclasses import dataclass
from enum import StrEnum


class Op(StrEnum):
    """What an instruction does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SEND = "send"
    RECEIVE = "receive"
    REDUCE = "reduce"
    UPDATE = "update"


class Bucket(StrEnum):
    """Which values one `Op.REDUCE` sums over ranks."""

    STAGE = "stage"
    """Gradients that only the replicas of one stage hold."""
    SHARED = "shared"
    """Gradients of a tied embedding, held by the first and the last stage of every replica."""
    SCALARS = "scalars"
    """Loss, squared gradient norm and counters, summed over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One step of one rank.

    `microbatch` is set for compute and messages; `peer`, the other stage, for messages; `bucket`
    for reductions. A message to a later stage is an activation, to an earlier one a gradient.
    """

    op: Op
    stage: int
    microbatch: int | None = None
    peer: int | None = None
    bucket: Bucket | None = None

    @property
    def is_compute(self) -> bool:
        """Whether this is a forward or a backward."""
        return self.op in (Op.FORWARD, Op.BACKWARD)


Program = tuple[Instruction, ...]
"""A rank's instructions, in order."""

Schedule = tuple[Program, ...]
"""The programs of the ranks of one pipeline, first stage first; every replica runs the same."""


def forward(stage: int, microbatch: int) -> Instruction:
    """Compute the forward of `stage` on `microbatch`."""
    return Instruction(op=Op.FORWARD, stage=stage, microbatch=microbatch)


def backward(stage: int, microbatch: int) -> Instruction:
    """Compute the backward of `stage` on `microbatch`."""
    return Instruction(op=Op.BACKWARD, stage=stage, microbatch=microbatch)


def send(stage: int, peer: int, microbatch: int) -> Instruction:
    """Send what `stage` has computed for `microbatch` to the stage `peer`; it does not block."""
    return Instruction(op=Op.SEND, stage=stage, peer=peer, microbatch=microbatch)


def receive(stage: int, peer: int, microbatch: int) -> Instruction:
    """Wait until what the stage `peer` computed for `microbatch` is at `stage`."""
    return Instruction(op=Op.RECEIVE, stage=stage, peer=peer, microbatch=microbatch)


def reduce(stage: int, bucket: Bucket) -> Instruction:
    """Sum `bucket` over all ranks that hold it."""
    return Instruction(op=Op.REDUCE, stage=stage, bucket=bucket)


def update(stage: int) -> Instruction:
    """Apply the optimizer to the parameters of `stage`."""
    return Instruction(op=Op.UPDATE, stage=stage)
