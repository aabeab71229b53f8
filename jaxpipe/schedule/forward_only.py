"""Evaluation: forwards alone."""

from jaxpipe.schedule.instruction import Schedule, forward
from jaxpipe.schedule.size import check_size


def forward_only(*, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the compute instructions of an evaluation; no residuals are kept.

    >>> from jaxpipe.schedule.render import render
    >>> print(render(forward_only(num_stages=3, num_microbatches=4)))
    stage 0  0  1  2  3  .  .
    stage 1  .  0  1  2  3  .
    stage 2  .  .  0  1  2  3

    Raises:
        PlanError: there are no stages or no microbatches.
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    return tuple(
        tuple(forward(stage, microbatch) for microbatch in range(num_microbatches))
        for stage in range(num_stages)
    )
