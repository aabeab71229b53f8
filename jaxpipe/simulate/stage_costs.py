"""The costs of a step's stages and messages, for schedules that are made to measure."""

from collections.abc import Callable
from itertools import pairwise

from jaxpipe.network import lone_message_s
from jaxpipe.schedule import Costs, Instruction, backward_input, backward_weight, forward
from jaxpipe.simulate.engine.step_model import StepModel


def stage_costs(job: StepModel) -> Costs:
    """Return the seconds of stages and of messages between them, of the slowest replica each."""
    assert job.num_chunks == 1, job.num_chunks  # ranks are stages here
    stages = range(job.num_stages)
    ranks = [range(stage, job.num_ranks, job.num_stages) for stage in stages]

    def slowest(compute: Callable[[int, int], Instruction]) -> tuple[float, ...]:
        return tuple(
            max(job.seconds(compute(stage, 0), rank=rank) for rank in ranks[stage])
            for stage in stages
        )

    hops = [list(pairwise(row)) for row in job.placement]

    def message_s(first: int, hop: tuple[int, int]) -> float:
        num_bytes = job.message_bytes(first, first + 1)
        both = (hop, (hop[1], hop[0]))
        return max(lone_message_s(job.cluster, pair, num_bytes=num_bytes) for pair in both)

    both = [
        [message_s(first + stage, hop) for stage, hop in enumerate(row)]
        for first, row in zip(job.first_ranks, hops, strict=True)
    ]
    return Costs(
        forward_s=slowest(forward),
        backward_input_s=slowest(backward_input),
        backward_weight_s=slowest(backward_weight),
        message_s=tuple(max(column) for column in zip(*both, strict=True)),
    )
