"""Instructions, programs and schedules: what each rank executes in one step, in order.

Instructions name stages, never ranks: replicas with equal pipelines run the same programs, and the
plan maps stages to ranks. A message is identified by its two stages and its microbatch, so
schedules with several chunks per rank need no further instructions. Between two stages of one rank
there is no message.

A backward is whole, or split in two: backward-input computes the gradient that the stage before
waits for; backward-weight adds to the gradients of the parameters, at any time later::

    cotangent ──► backward-input ──► gradient of the input, to the stage before
                        │
                        └──► backward-weight ──► gradients of the parameters

A schedule may split some backwards and leave others whole.

Reductions of gradients, of `Bucket.STAGE` and `Bucket.TIED`, are asynchronous: they begin at their
position in the program, and the instructions that need their result wait for it: every update, and
the reduction of `Bucket.SCALARS` on the ranks that contribute their norm to it, those of replica 0.
That reduction blocks. (Blocking in all of them is correct, and slower.) Replicas with the same
programs begin their reductions in the same order; other replicas in any order.

Where replicas shard the optimizer of a stage (ZeRO-1), a gather follows its update: of the
parameters, of which each replica has updated a part, from the holders of each of its segments, one
segment after the other, lowest number first. It blocks.

Source of the split: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.
"""

from dataclasses import dataclass
from enum import StrEnum

from jaxpipe.errors import PlanError


class Op(StrEnum):
    """The operation of an instruction."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward-input"
    BACKWARD_WEIGHT = "backward-weight"
    SEND = "send"
    RECEIVE = "receive"
    REDUCE = "reduce"
    UPDATE = "update"
    GATHER = "gather"


class Bucket(StrEnum):
    """The values that one `Op.REDUCE` sums over ranks."""

    STAGE = "stage"
    """Gradients that only the replicas of one stage hold; one reduction per segment.

    A stage is one segment, unless replicas divide the layers differently: then it has one for each
    set of ranks that hold some of its layers (`jaxpipe.plan.segments`).
    """
    TIED = "tied"
    """Gradients of a tied embedding, held by the first and the last stage of every replica.

    One reduction per rank: a rank that holds both stages has it at the first.
    """
    SCALARS = "scalars"
    """Loss, squared gradient norm (that of replica 0) and counters, summed over all ranks.

    One reduction per rank, at the first stage that it holds.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction of one rank.

    `microbatch` is set for compute and messages; `peer`, the other stage, for messages; `bucket`
    for reductions, and `segment` for those of `Bucket.STAGE`, or for a gather of one segment. A
    message to a later stage is an activation, to an earlier one a gradient.
    """

    op: Op
    stage: int
    microbatch: int | None = None
    peer: int | None = None
    bucket: Bucket | None = None
    segment: int | None = None

    @property
    def is_compute(self) -> bool:
        """Whether this is a forward, a backward, or one of the halves of a backward."""
        return self.op is Op.FORWARD or self.is_backward

    @property
    def is_backward(self) -> bool:
        """Whether this is a backward, whole or half."""
        return self.op in (Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)

    @property
    def frees_residuals(self) -> bool:
        """Whether this is the last instruction that needs the residuals of its microbatch."""
        return self.op in (Op.BACKWARD, Op.BACKWARD_WEIGHT)


Program = tuple[Instruction, ...]
"""A rank's instructions, in order."""

Schedule = tuple[Program, ...]
"""The programs of the ranks of one pipeline, first rank first; every replica runs the same.

Stage s is held by rank s % num_ranks; with one chunk per rank, that is program s.
"""


def forward(stage: int, microbatch: int) -> Instruction:
    """Compute the forward of `stage` on `microbatch`."""
    return Instruction(op=Op.FORWARD, stage=stage, microbatch=microbatch)


def backward(stage: int, microbatch: int) -> Instruction:
    """Compute the whole backward of `stage` on `microbatch`."""
    return Instruction(op=Op.BACKWARD, stage=stage, microbatch=microbatch)


def backward_input(stage: int, microbatch: int) -> Instruction:
    """Compute the gradient of the input of `stage` on `microbatch`."""
    return Instruction(op=Op.BACKWARD_INPUT, stage=stage, microbatch=microbatch)


def backward_weight(stage: int, microbatch: int) -> Instruction:
    """Add what `microbatch` contributes to the gradients of the parameters of `stage`."""
    return Instruction(op=Op.BACKWARD_WEIGHT, stage=stage, microbatch=microbatch)


def send(stage: int, peer: int, microbatch: int) -> Instruction:
    """Send the result of `stage` for `microbatch` to the stage `peer`, without blocking."""
    return Instruction(op=Op.SEND, stage=stage, peer=peer, microbatch=microbatch)


def receive(stage: int, peer: int, microbatch: int) -> Instruction:
    """Wait for the result of the stage `peer` for `microbatch`."""
    return Instruction(op=Op.RECEIVE, stage=stage, peer=peer, microbatch=microbatch)


def reduce(stage: int, bucket: Bucket, *, segment: int | None = None) -> Instruction:
    """Sum `bucket` over all ranks that hold it; that of a stage only begins here.

    By default, the segment of a stage has the number of the stage.
    """
    if bucket is Bucket.STAGE and segment is None:
        segment = stage
    return Instruction(op=Op.REDUCE, stage=stage, bucket=bucket, segment=segment)


def update(stage: int) -> Instruction:
    """Apply the optimizer to the parameters of `stage`."""
    return Instruction(op=Op.UPDATE, stage=stage)


def gather(stage: int, *, segment: int | None = None) -> Instruction:
    """All-gather the updated parameters of `stage`, or of one of its segments."""
    return Instruction(op=Op.GATHER, stage=stage, segment=segment)


_JOINING = {Op.SEND: "to", Op.RECEIVE: "from"}


def describe(instruction: Instruction) -> str:
    """Return an instruction as text, without its own stage.

    >>> from jaxpipe.schedule.instruction import receive
    >>> describe(receive(2, 1, 7))
    'receive 7 from stage 1'
    """
    parts = [instruction.op.value]
    if instruction.microbatch is not None:
        parts.append(str(instruction.microbatch))
    if instruction.peer is not None:
        parts.append(f"{_JOINING.get(instruction.op, 'with')} stage {instruction.peer}")
    if instruction.bucket is not None:
        parts.append(instruction.bucket.value)
    if instruction.segment not in (None, instruction.stage):
        parts.append(f"segment {instruction.segment}")
    return " ".join(parts)


def refusal(
    rule: str, stage: int, position: int, instruction: Instruction, fault: str
) -> PlanError:
    """Return the error of an instruction: the `rule` that it breaks, and how."""
    return PlanError(
        f"{rule}: stage {stage}, position {position}, `{describe(instruction)}` {fault}"
    )
