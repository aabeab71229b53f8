"""The two numbers that every schedule has: of stages and of microbatches."""

from jaxpipe.errors import PlanError


def check_size(*, num_stages: int, num_microbatches: int) -> None:
    """Refuse a schedule without stages or without microbatches.

    >>> check_size(num_stages=0, num_microbatches=4)
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: a schedule needs a stage: `num_stages` is 0; make it at least 1

    Raises:
        PlanError: `num_stages` or `num_microbatches` is less than one.
    """
    if num_stages < 1:
        raise PlanError(
            f"a schedule needs a stage: `num_stages` is {num_stages}; make it at least 1"
        )
    if num_microbatches < 1:
        raise PlanError(
            f"a schedule needs a microbatch: `num_microbatches` is {num_microbatches}; "
            "make it at least 1"
        )
