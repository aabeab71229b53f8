"""Dataflow between compute instructions: their inputs, outputs and messages.

Activations descend the stages and gradients ascend them; the last stage turns one into the other::

    stage 0   forward ──┐         ┌──► backward
                        ▼         │
    stage 1   forward ──┐         ┌──► backward
                        ▼         │
    stage 2   forward ────────────┴──► backward

Of a split backward, backward-input has its place in this picture, and backward-weight follows it.
"""

from enum import StrEnum
from typing import NamedTuple

from jaxpipe.schedule.instruction import Instruction, Op
from jaxpipe.schedule.virtual_stages import holder


class ValueKind(StrEnum):
    """The kinds of values that computes produce."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"
    CONTRIBUTION = "contribution"
    """To the gradients of the parameters; no other compute consumes it."""


class Value(NamedTuple):
    """The result of a compute: its kind, stage and microbatch."""

    kind: ValueKind
    stage: int
    microbatch: int


_MADE_BY = {
    Op.FORWARD: ValueKind.ACTIVATION,
    Op.BACKWARD: ValueKind.GRADIENT,
    Op.BACKWARD_INPUT: ValueKind.GRADIENT,
    Op.BACKWARD_WEIGHT: ValueKind.CONTRIBUTION,
}


def output(compute: Instruction) -> Value:
    """Return the value that `compute` produces; residuals count as part of the activation.

    >>> from jaxpipe.schedule.instruction import backward, backward_input
    >>> output(backward(1, 5)) == output(backward_input(1, 5))
    True
    """
    assert compute.microbatch is not None, compute
    return Value(_MADE_BY[compute.op], compute.stage, compute.microbatch)


def inputs(compute: Instruction, *, num_stages: int) -> tuple[Value, ...]:
    """Return the values that `compute` consumes.

    A forward takes the activation of the stage before. A backward, and a backward-input, take the
    residuals of their own forward, and the gradient of the stage after; a backward-weight takes
    the intermediate results of its backward-input.
    """
    stage, microbatch = compute.stage, compute.microbatch
    assert microbatch is not None, compute
    if compute.op is Op.BACKWARD_WEIGHT:
        return (Value(ValueKind.GRADIENT, stage, microbatch),)
    source = source_stage(compute, num_stages=num_stages)
    if compute.op is Op.FORWARD:
        return () if source is None else (Value(ValueKind.ACTIVATION, source, microbatch),)
    # The forward of the same stage, which left them.
    residuals = Value(ValueKind.ACTIVATION, stage, microbatch)
    return (
        (residuals,)
        if source is None
        else (residuals, Value(ValueKind.GRADIENT, source, microbatch))
    )


def source_stage(compute: Instruction, *, num_stages: int) -> int | None:
    """Return the other stage whose result `compute` consumes, or None.

    >>> from jaxpipe.schedule.instruction import backward, forward
    >>> source_stage(backward(0, 5), num_stages=3)
    1
    >>> source_stage(forward(0, 5), num_stages=3) is None
    True
    """
    return _within(compute.stage - _step(compute), compute, num_stages=num_stages)


def destination_stage(compute: Instruction, *, num_stages: int) -> int | None:
    """Return the other stage that consumes the result of `compute`, or None.

    >>> from jaxpipe.schedule.instruction import backward, forward
    >>> destination_stage(forward(0, 5), num_stages=3)
    1
    >>> destination_stage(backward(0, 5), num_stages=3) is None
    True
    """
    return _within(compute.stage + _step(compute), compute, num_stages=num_stages)


def _step(compute: Instruction) -> int:
    return 1 if compute.op is Op.FORWARD else -1


def _within(stage: int, compute: Instruction, *, num_stages: int) -> int | None:
    stays = compute.op is Op.BACKWARD_WEIGHT
    return stage if 0 <= stage < num_stages and not stays else None


def message_ends(
    compute: Instruction, *, num_ranks: int, num_stages: int
) -> tuple[int | None, int | None]:
    """Return the stages from which a compute receives and to which it sends, None for no message.

    There is no message between stages of the same rank.

    >>> from jaxpipe.schedule.instruction import backward_input, backward_weight, forward
    >>> message_ends(forward(1, 0), num_ranks=2, num_stages=4)
    (0, 2)
    >>> message_ends(backward_input(0, 0), num_ranks=2, num_stages=4)
    (1, None)
    >>> message_ends(backward_weight(1, 0), num_ranks=2, num_stages=4)
    (None, None)
    >>> message_ends(forward(1, 0), num_ranks=1, num_stages=4)
    (None, None)
    """
    here = holder(compute.stage, num_ranks=num_ranks)
    source = source_stage(compute, num_stages=num_stages)
    destination = destination_stage(compute, num_stages=num_stages)
    return (
        None if source is None or holder(source, num_ranks=num_ranks) == here else source,
        None
        if destination is None or holder(destination, num_ranks=num_ranks) == here
        else destination,
    )
