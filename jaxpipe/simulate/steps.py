"""What a rank has to do in a job: its programs, phase by phase, and where all ranks meet."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxpipe.schedule import Instruction, Op
from jaxpipe.simulate.job import Job


class Step(NamedTuple):
    """An instruction of a phase, or, where there is none, a meeting of all ranks."""

    phase: int
    instruction: Instruction | None


def steps(job: Job, number: int) -> tuple[Step, ...]:
    """Return the steps of every rank that has this number in its pipeline.

    A reduction for which the job has no collective, or one in which the rank has no part, is left
    out.
    """
    return tuple(_steps(job, number))


def _steps(job: Job, number: int) -> Iterator[Step]:
    for position, phase in enumerate(job.phases):
        for instruction in phase.schedule[number]:
            if instruction.op is not Op.REDUCE or _joins(job, number, instruction):
                yield Step(position, instruction)
        if phase.meets and job.num_ranks > 1:
            yield Step(position, None)


def _joins(job: Job, number: int, reduction: Instruction) -> bool:
    return any(
        rank % job.num_pipeline_ranks == number
        for collective in job.meant_by(reduction).values()
        for each in collective
        for rank in (each.source, each.destination)
    )
