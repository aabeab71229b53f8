"""Which messages a compute needs: none between stages of one rank."""

from jaxpipe.schedule.flow import destination_stage, source_stage
from jaxpipe.schedule.holding import holder
from jaxpipe.schedule.instruction import Instruction


def message_ends(
    compute: Instruction, *, num_ranks: int, num_stages: int
) -> tuple[int | None, int | None]:
    """Return the stages from which and to which a compute has a message, None where it has none.

    A neighbouring stage on the same rank takes and leaves arrays without a message.

    >>> from jaxpipe.schedule.instruction import backward_input, backward_weight, forward
    >>> message_ends(forward(1, 0), num_ranks=2, num_stages=4)
    (0, 2)
    >>> message_ends(backward_input(0, 0), num_ranks=2, num_stages=4)
    (1, None)
    >>> message_ends(backward_weight(1, 0), num_ranks=2, num_stages=4)
    (None, None)
    >>> message_ends(forward(1, 0), num_ranks=1, num_stages=4)
    (None, None)
    """
    here = holder(compute.stage, num_ranks=num_ranks)
    source = source_stage(compute, num_stages=num_stages)
    destination = destination_stage(compute, num_stages=num_stages)
    return (
        None if source is None or holder(source, num_ranks=num_ranks) == here else source,
        None
        if destination is None or holder(destination, num_ranks=num_ranks) == here
        else destination,
    )
