"""The numbers that every schedule has: of stages, of microbatches, and of chunks to a rank."""

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


def check_chunks(*, num_stages: int, num_chunks: int) -> None:
    """Refuse chunks that do not make the same number of stages on every rank.

    >>> check_chunks(num_stages=6, num_chunks=4)
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: every rank holds as many chunks: `num_stages` is 6 and `num_chunks` \
is 4; make the one a multiple of the other

    Raises:
        PlanError: `num_chunks` is less than one, or does not divide `num_stages`.
    """
    if num_chunks < 1 or num_stages % num_chunks:
        raise PlanError(
            f"every rank holds as many chunks: `num_stages` is {num_stages} and `num_chunks` is "
            f"{num_chunks}; make the one a multiple of the other"
        )
