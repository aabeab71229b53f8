"""Where data flows: what a compute instruction consumes, and where its result goes.

Activations descend the stages and gradients ascend them; the last stage turns one into the other::

    stage 0   forward ──┐         ┌──► backward
                        ▼         │
    stage 1   forward ──┐         ┌──► backward
                        ▼         │
    stage 2   forward ────────────┴──► backward

Of a split backward, backward-input stands in this picture, and backward-weight follows it.
"""

from enum import StrEnum
from typing import NamedTuple

from jaxpipe.schedule.instruction import Instruction, Op


class Kind(StrEnum):
    """What flows between computes."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"
    CONTRIBUTION = "contribution"
    """To the gradients of the parameters; no other compute consumes it."""


class Value(NamedTuple):
    """What a compute makes: of which stage, for which microbatch."""

    kind: Kind
    stage: int
    microbatch: int


_MADE_BY = {
    Op.FORWARD: Kind.ACTIVATION,
    Op.BACKWARD: Kind.GRADIENT,
    Op.BACKWARD_INPUT: Kind.GRADIENT,
    Op.BACKWARD_WEIGHT: Kind.CONTRIBUTION,
}


def output(compute: Instruction) -> Value:
    """Return what `compute` makes for others; a forward keeps its residuals with its activation.

    >>> from jaxpipe.schedule.instruction import backward, backward_input
    >>> output(backward(1, 5)) == output(backward_input(1, 5))
    True
    """
    assert compute.microbatch is not None, compute
    return Value(_MADE_BY[compute.op], compute.stage, compute.microbatch)


def inputs(compute: Instruction, *, num_stages: int) -> tuple[Value, ...]:
    """Return what `compute` consumes.

    A forward takes the activation of the stage before. A backward, and a backward-input, take the
    residuals of their own forward, and the gradient of the stage behind; a backward-weight takes
    what its backward-input has left.
    """
    stage, microbatch = compute.stage, compute.microbatch
    assert microbatch is not None, compute
    if compute.op is Op.BACKWARD_WEIGHT:
        return (Value(Kind.GRADIENT, stage, microbatch),)
    source = source_stage(compute, num_stages=num_stages)
    if compute.op is Op.FORWARD:
        return () if source is None else (Value(Kind.ACTIVATION, source, microbatch),)
    residuals = Value(Kind.ACTIVATION, stage, microbatch)
    return (residuals,) if source is None else (residuals, Value(Kind.GRADIENT, source, microbatch))


def source_stage(compute: Instruction, *, num_stages: int) -> int | None:
    """Return the other stage whose result `compute` consumes, or None if it needs none.

    >>> from jaxpipe.schedule.instruction import backward, forward
    >>> source_stage(backward(0, 5), num_stages=3)
    1
    >>> source_stage(forward(0, 5), num_stages=3) is None
    True
    """
    return _within(compute.stage - _step(compute), compute, num_stages=num_stages)


def destination_stage(compute: Instruction, *, num_stages: int) -> int | None:
    """Return the other stage that consumes the result of `compute`, or None if it stays.

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
