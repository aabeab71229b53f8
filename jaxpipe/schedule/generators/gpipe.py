"""GPipe: all forwards, then all backwards; and the forwards alone, for evaluation."""

from jaxpipe.schedule.generators.schedule_facts import ScheduleFacts
from jaxpipe.schedule.instruction import Schedule, backward, forward
from jaxpipe.schedule.virtual_stages import check_chunks, check_size


def gpipe(*, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the compute instructions of GPipe.

    With stages of equal duration the bubble is (p - 1) / (m + p - 1) of the time for p stages and
    m microbatches; every stage keeps the residuals of all m microbatches.

    >>> from jaxpipe.schedule.render import render
    >>> print(render(gpipe(num_stages=3, num_microbatches=4)))
    stage 0  0  1  2  3  .  .  .  . [0][1][2][3]
    stage 1  .  0  1  2  3  .  . [0][1][2][3] .
    stage 2  .  .  0  1  2  3 [0][1][2][3] .  .

    The backwards run in the order of the forwards, so that all schedules add the gradients of the
    microbatches in the same order and agree to the last bit; the paper draws them in reverse,
    which takes the same time and memory.

    Raises:
        PlanError: there are no stages or no microbatches.

    Source: Huang et al., "GPipe", NeurIPS 2019, figure 2c.
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    return tuple(
        (
            *(forward(stage, microbatch) for microbatch in range(num_microbatches)),
            *(backward(stage, microbatch) for microbatch in range(num_microbatches)),
        )
        for stage in range(num_stages)
    )


GPIPE = ScheduleFacts(
    generate=gpipe, most_live=lambda size: [size.num_microbatches] * size.num_stages
)


def forward_only(*, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Return the compute instructions of an evaluation; no residuals are kept.

    >>> from jaxpipe.schedule.render import render
    >>> print(render(forward_only(num_stages=3, num_microbatches=4)))
    stage 0  0  1  2  3  .  .
    stage 1  .  0  1  2  3  .
    stage 2  .  .  0  1  2  3

    Ranks with several chunks process the microbatches in groups of num_ranks, each group through
    all chunks before the next:

    >>> print(render(forward_only(num_stages=4, num_microbatches=3, num_chunks=2)))
    rank 0   0.0  1.0  0.1  1.1  2.0    .  2.1    .
    rank 1     .  0.0  1.0  0.1  1.1  2.0    .  2.1

    Raises:
        PlanError: there are no stages or no microbatches, or the chunks are not an equal number to
            each rank.
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    check_chunks(num_stages=num_stages, num_chunks=num_chunks)
    num_ranks = num_stages // num_chunks
    return tuple(
        tuple(
            forward(stage, microbatch)
            for first in range(0, num_microbatches, num_ranks)
            for stage in range(rank, num_stages, num_ranks)
            for microbatch in range(first, min(first + num_ranks, num_microbatches))
        )
        for rank in range(num_ranks)
    )
