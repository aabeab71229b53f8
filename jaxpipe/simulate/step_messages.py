"""The messages of a step: between stages, and of its all-reduces."""

from collections import defaultdict
from collections.abc import Iterator

from jaxpipe.schedule import Op
from jaxpipe.simulate.engine.step_model import StepModel


def messages_of(job: StepModel) -> Iterator[tuple[int, int, float]]:
    """Yield sender, receiver and bytes of each message of a step, both as ranks."""
    for rank in range(job.num_ranks):
        first, size = rank - job.number(rank), job.pipeline_size(rank)
        for phase in job.phases:
            for each in phase.of(job.replicas[rank])[job.number(rank)]:
                if each.op is Op.SEND:
                    assert each.peer is not None, each
                    to = first + each.peer % size
                    yield rank, to, job.message_bytes(rank, to)
    for collective in job.all_collectives:
        yield from ((each.source, each.destination, each.num_bytes) for each in collective)


def bytes_between_regions(job: StepModel) -> dict[tuple[str, str], float]:
    """Return the bytes that a step sends from each region to each other."""
    devices = job.cluster.devices
    regions = [devices[job.device(rank)].region for rank in range(job.num_ranks)]
    crossing: defaultdict[tuple[str, str], float] = defaultdict(float)
    for source, destination, num_bytes in messages_of(job):
        if regions[source] != regions[destination]:
            crossing[regions[source], regions[destination]] += num_bytes
    return dict(crossing)
