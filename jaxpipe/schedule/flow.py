"""Where data flows: what a compute instruction consumes, and where its result goes.

Activations descend the stages and gradients ascend them; the last stage turns one into the other::

    stage 0   forward ──┐         ┌──► backward
                        ▼         │
    stage 1   forward ──┐         ┌──► backward
                        ▼         │
    stage 2   forward ────────────┴──► backward
"""

from jaxpipe.schedule.instruction import Instruction, Op, backward, forward


def source_stage(compute: Instruction, *, num_stages: int) -> int | None:
    """Return the stage whose message `compute` consumes, or None if it needs no message.

    >>> source_stage(backward(0, 5), num_stages=3)
    1
    >>> source_stage(forward(0, 5), num_stages=3) is None
    True
    """
    step = -1 if compute.op is Op.FORWARD else 1
    return _within(compute.stage + step, num_stages=num_stages)


def destination_stage(compute: Instruction, *, num_stages: int) -> int | None:
    """Return the stage to which the result of `compute` is sent, or None if it stays.

    >>> destination_stage(forward(0, 5), num_stages=3)
    1
    >>> destination_stage(backward(0, 5), num_stages=3) is None
    True
    """
    step = 1 if compute.op is Op.FORWARD else -1
    return _within(compute.stage + step, num_stages=num_stages)


def inputs(compute: Instruction, *, num_stages: int) -> tuple[Instruction, ...]:
    """Return the compute instructions whose results `compute` consumes.

    A forward takes the activation of the stage before. A backward takes the residuals of its own
    forward, and the gradient of the stage behind.
    """
    stage, microbatch = compute.stage, compute.microbatch
    assert microbatch is not None, compute
    source = source_stage(compute, num_stages=num_stages)
    if compute.op is Op.FORWARD:
        return () if source is None else (forward(source, microbatch),)
    residuals = forward(stage, microbatch)
    return (residuals,) if source is None else (residuals, backward(source, microbatch))


def _within(stage: int, *, num_stages: int) -> int | None:
    return stage if 0 <= stage < num_stages else None
