"""What a rank has to do in a job: its programs, phase by phase, and where all ranks meet."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxpipe.schedule import Bucket, Instruction
from jaxpipe.simulate.job import Job


class Step(NamedTuple):
    """An instruction of a phase, or, where there is none, a meeting of all ranks."""

    phase: int
    instruction: Instruction | None


def steps(job: Job, stage: int) -> tuple[Step, ...]:
    """Return the steps of every rank that holds a stage.

    A reduction for which the job has no collective, or one in which the stage has no part, is left
    out.
    """
    return tuple(_steps(job, stage))


def _steps(job: Job, stage: int) -> Iterator[Step]:
    for number, phase in enumerate(job.phases):
        for instruction in phase.schedule[stage]:
            if instruction.bucket is None or _joins(job, stage, instruction.bucket):
                yield Step(number, instruction)
        if phase.meets and job.num_ranks > 1:
            yield Step(number, None)


def _joins(job: Job, stage: int, bucket: Bucket) -> bool:
    return any(
        each.source % job.num_stages == stage or each.destination % job.num_stages == stage
        for collective in job.collectives.get(bucket, ())
        for each in collective
    )
