"""The part of a job that trains in step: an island of an outer loop, or the whole job."""

from dataclasses import dataclass, replace

from jaxpipe.comm import SubsetTransport, Transport
from jaxpipe.plan import Island, island_of
from jaxpipe.runtime.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """One island as a job of its own: plan, batch and ranks; without an outer loop it is the whole.

    What happens in every step uses `job` and `transport`. What concerns all ranks, such as the
    samples of a step, checkpoints and traces, uses `whole_job` and `everyone`.
    """

    job: Job
    transport: Transport
    whole_job: Job
    everyone: Transport
    island: Island


def part_of(job: Job, transport: Transport) -> JobPart:
    """Return the part of a rank of the whole job."""
    num_islands = max(1, job.outer.islands)
    island = island_of(job.plan, rank=transport.rank, num_islands=num_islands)
    if num_islands == 1:
        return JobPart(
            job=job, transport=transport, whole_job=job, everyone=transport, island=island
        )
    # The loss is a mean over the batch of the island: its learning rate and its clipping mean what
    # they mean without an outer loop.
    part = replace(job, plan=island.plan, train=replace(job.train, batch=island.plan.batch))
    subset = SubsetTransport(transport, members=island.ranks)
    return JobPart(job=part, transport=subset, whole_job=job, everyone=transport, island=island)
