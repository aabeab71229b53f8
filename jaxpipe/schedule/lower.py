"""Lowering: from what is computed to everything that a rank does in a step.

Each compute instruction gets the messages that it needs, as close to it as can be, and each
program its end::

    forward 3         receive 3 from stage 0          stage 0 ──► stage 1 ──► stage 2
                ──►   forward 3                            activation 3
                      send 3 to stage 2

    last backward     the last backward and its send
                ──►   reduce stage       over the replicas of the stage, if there are several
                      reduce shared      over first and last stages, if the embedding is tied
                      reduce scalars     over all ranks: loss, gradient norm, counters
                      update

A schedule without backwards, an evaluation, ends with its scalars.
"""

from collections.abc import Iterator

from jaxpipe.errors import PlanError
from jaxpipe.schedule.describe import describe
from jaxpipe.schedule.flow import destination_stage, source_stage
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    receive,
    reduce,
    send,
    update,
)


def lower(compute: Schedule, *, tied: bool, num_replicas: int) -> Schedule:
    """Add communication and the update to a schedule of compute instructions.

    `tied` says whether the first and the last stage share the embedding; with one stage there is
    nothing to share.

    >>> from jaxpipe.schedule.gpipe import gpipe
    >>> schedule = lower(gpipe(num_stages=2, num_microbatches=1), tied=True, num_replicas=2)
    >>> for program in schedule:
    ...     print("; ".join(describe(instruction) for instruction in program))
    forward 0; send 0 to stage 1; receive 0 from stage 1; backward 0; reduce stage; reduce shared; \
reduce scalars; update
    receive 0 from stage 0; forward 0; backward 0; send 0 to stage 0; reduce stage; reduce shared; \
reduce scalars; update

    Raises:
        PlanError: `num_replicas` is less than one, or `compute` holds other than forwards and
            backwards.
    """
    if num_replicas < 1:
        raise PlanError(
            f"a model has a replica: `num_replicas` is {num_replicas}; make it at least 1"
        )
    num_stages = len(compute)
    _check_compute(compute)
    trains = any(instruction.op is Op.BACKWARD for program in compute for instruction in program)
    return tuple(
        (
            *_with_messages(program, num_stages=num_stages),
            *(
                _training_end(stage, num_stages=num_stages, tied=tied, num_replicas=num_replicas)
                if trains
                else (reduce(stage, Bucket.SCALARS),)
            ),
        )
        for stage, program in enumerate(compute)
    )


def _with_messages(program: Program, *, num_stages: int) -> Iterator[Instruction]:
    for compute in program:
        stage, microbatch = compute.stage, compute.microbatch
        assert microbatch is not None, compute
        source = source_stage(compute, num_stages=num_stages)
        destination = destination_stage(compute, num_stages=num_stages)
        if source is not None:
            yield receive(stage, source, microbatch)
        yield compute
        if destination is not None:
            yield send(stage, destination, microbatch)


def _training_end(
    stage: int, *, num_stages: int, tied: bool, num_replicas: int
) -> Iterator[Instruction]:
    if num_replicas > 1:
        yield reduce(stage, Bucket.STAGE)
    if tied and num_stages > 1 and stage in (0, num_stages - 1):
        yield reduce(stage, Bucket.SHARED)
    yield reduce(stage, Bucket.SCALARS)
    yield update(stage)


def _check_compute(compute: Schedule) -> None:
    for stage, program in enumerate(compute):
        for position, instruction in enumerate(program):
            if not instruction.is_compute:
                raise PlanError(
                    f"only forwards and backwards can be lowered: stage {stage}, position "
                    f"{position} of `compute` is `{describe(instruction)}`; lower a schedule once"
                )
