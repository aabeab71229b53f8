"""Lowering: add messages, reductions and updates to a schedule of compute instructions.

Each compute instruction gets its messages, as close to it as possible; each stage begins the
all-reduce of its gradients as soon as they are complete; each program ends with the update::

    forward 3         receive 3 from stage 0          stage 0 ──► stage 1 ──► stage 2
                ──►   forward 3                            activation 3
                      send 3 to stage 2

    last backward     the last backward (or backward-weight) of a stage, and its send
    of a stage  ──►   reduce stage       over the holders of each segment of the stage, last
                                         segment first, if there are several replicas

    end         ──►   reduce tied      over first and last stages, if the embedding is tied
                      reduce scalars     over all ranks: loss, gradient norm, counters
                      update             of each stage that the rank holds
                gather             of its parameters, if replicas shard the optimizer

There are no messages between stages of one rank. A schedule without backwards, an evaluation, ends
with its scalars.
"""

from collections.abc import Iterable, Iterator, Sequence

from jaxpipe.errors import PlanError
from jaxpipe.schedule.dataflow import message_ends
from jaxpipe.schedule.deadlock import together
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Program,
    Schedule,
    describe,
    gather,
    receive,
    reduce,
    send,
    update,
)
from jaxpipe.schedule.virtual_stages import count_stages, stages_held


def lower(
    compute: Schedule,
    *,
    tied: bool,
    num_replicas: int,
    segments: Sequence[range] | None = None,
    sharded: bool = False,
) -> Schedule:
    """Add communication and the update to a schedule of compute instructions.

    `tied` says whether the first and the last stage share the embedding; with one stage there is
    nothing to share but with other replicas. `segments[stage]` are the numbers of the segments of a
    stage, by default the stage's own. With a `sharded` optimizer replicas gather what they update.

    >>> from jaxpipe.schedule.generators.gpipe import gpipe
    >>> schedule = lower(gpipe(num_stages=2, num_microbatches=1), tied=True, num_replicas=2)
    >>> for program in schedule:
    ...     print("; ".join(describe(instruction) for instruction in program))
    forward 0; send 0 to stage 1; receive 0 from stage 1; backward 0; reduce stage; reduce tied; \
reduce scalars; update
    receive 0 from stage 0; forward 0; backward 0; send 0 to stage 0; reduce stage; reduce tied; \
reduce scalars; update

    Raises:
        PlanError: `num_replicas` is less than one, or `compute` holds other than forwards and
            backwards.
    """
    if num_replicas < 1:
        raise PlanError(f"`num_replicas` ({num_replicas}) must be at least 1")
    _check_compute(compute)
    num_ranks, num_stages = len(compute), count_stages(compute)
    # With one stage, an embedding is shared only with replicas that have several.
    tied = tied and (num_stages > 1 or segments is not None)
    segments = segments or [range(stage, stage + 1) for stage in range(num_stages)]
    # An evaluation has no gradients to reduce, and nothing to update.
    trains = any(instruction.is_backward for program in compute for instruction in program)
    return tuple(
        (
            *_pipeline(
                program,
                num_ranks=num_ranks,
                num_stages=num_stages,
                reduced=segments if trains and num_replicas > 1 else None,
            ),
            *_sums(rank, num_ranks=num_ranks, num_stages=num_stages, tied=tied and trains),
            *_updates(
                stages_held(rank, num_ranks=num_ranks, num_stages=num_stages) if trains else (),
                gathers=sharded and num_replicas > 1,
            ),
        )
        for rank, program in enumerate(compute)
    )


def _pipeline(
    program: Program, *, num_ranks: int, num_stages: int, reduced: Sequence[range] | None
) -> Iterator[Instruction]:
    # A later entry replaces an earlier one: the last compute completes the stage's gradients.
    last_of = {instruction.stage: instruction for instruction in program}
    for compute in program:
        stage, microbatch = compute.stage, compute.microbatch
        assert microbatch is not None, compute
        source, destination = message_ends(compute, num_ranks=num_ranks, num_stages=num_stages)
        if source is not None:
            yield receive(stage, source, microbatch)
        yield compute
        if destination is not None:
            yield send(stage, destination, microbatch)
        # After the send: the stage before waits for the message, nobody yet for the reduction.
        if reduced is not None and compute is last_of[stage]:
            for segment in reversed(reduced[stage]):
                yield reduce(stage, Bucket.STAGE, segment=segment)


def _sums(rank: int, *, num_ranks: int, num_stages: int, tied: bool) -> Iterator[Instruction]:
    if tied:
        stages_here = stages_held(rank, num_ranks=num_ranks, num_stages=num_stages)
        shared = together(Bucket.TIED, stage=0, num_ranks=num_ranks, num_stages=num_stages)
        yield from (instruction for instruction in shared if instruction.stage in stages_here)
    yield reduce(rank, Bucket.SCALARS)  # after the gradients: it has their norm


def _updates(stages: Iterable[int], *, gathers: bool) -> Iterator[Instruction]:
    for stage in stages:
        yield update(stage)
        # At once: the old parameters of a stage are freed before the next stage has new ones.
        if gathers:
            yield gather(stage)


def _check_compute(compute: Schedule) -> None:
    for program in compute:
        for position, instruction in enumerate(program):
            if not instruction.is_compute:
                raise PlanError(
                    f"stage {instruction.stage} has `{describe(instruction)}` at position "
                    f"{position} of `compute`: only forwards and backwards can be lowered; lower a "
                    "schedule once"
                )
