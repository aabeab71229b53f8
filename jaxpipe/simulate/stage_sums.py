"""The sums of gradients over replicas: one collective to a stage."""

from collections.abc import Sequence

from jaxpipe.simulate.collective import Algorithm, Collective, chain
from jaxpipe.simulate.workload import Workload

NUM_CHUNKS = 128
"""In so many parts gradients follow each other; NCCL's are smaller, and cost more to simulate."""


def sequential_chain(members: Sequence[int], num_bytes: float) -> Collective:
    """Reduce to the first replica along a chain, then broadcast: what DT-FM's runs did."""
    return chain(tuple(members), num_bytes, num_chunks=NUM_CHUNKS, is_duplex=False)


def stage_sums(
    cut: tuple[int, ...], *, num_replicas: int, workload: Workload, all_reduce: Algorithm
) -> tuple[Collective, ...]:
    """Return each stage's sum over its replicas, in the order of their ranks."""
    num_stages = len(cut)
    return tuple(
        all_reduce(
            range(stage, num_stages * num_replicas, num_stages),
            workload.gradient_bytes(cut[stage], is_first=stage == 0),
        )
        for stage in range(num_stages)
    )
