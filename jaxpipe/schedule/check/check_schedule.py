"""Static check of a lowered schedule: it is one whole step, and it cannot deadlock."""

from jaxpipe.schedule.check.completeness import check_content
from jaxpipe.schedule.check.dependencies import check_order
from jaxpipe.schedule.deadlock import check_progress
from jaxpipe.schedule.instruction import Schedule


def check(schedule: Schedule) -> None:
    """Refuse a lowered schedule that is not one whole step, or that deadlocks.

    The proof has three parts; each names the first instruction that breaks its rule:

    1. *Content.* Each stage has a forward of every microbatch, in training a backward of each as
       well, whole or split, the messages that these need and no other, and the same reductions as
       the other ranks, each of them once.
    2. *Order.* An instruction follows the instructions that it depends on in its program.
    3. *Progress.* Executed together, with sends that never block and receives and reductions that
       wait for their other ends, all programs complete.

    Some numbers are taken from the schedule itself: the highest microbatch, the highest stage (and
    so the chunks of each rank), whether there are backwards, which of them are split, and which
    buckets are reduced.

    >>> from jaxpipe.schedule.instruction import Bucket, forward, receive, reduce, send
    >>> first = (forward(0, 0), send(0, 1, 0), reduce(0, Bucket.SCALARS))
    >>> second = (receive(1, 0, 0), forward(1, 0), reduce(1, Bucket.SCALARS))
    >>> check((first, second))
    >>> check((first, second[1:]))
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: every send has its receive: stage 0, position 1, \
`send 0 to stage 1` has none; add `receive 0 from stage 0` to stage 1

    Cost: a few set operations for each instruction.

    Raises:
        PlanError: the first rule that is broken, with stage, position and instruction.
    """
    # In this order: both later checks take for granted that no instruction is missing.
    check_content(schedule)
    check_order(schedule)
    check_progress(schedule)
