"""Virtual stages: the mapping of stages to the ranks of a pipeline, and checks of their numbers.

A pipeline of P ranks with v chunks each has P v stages, assigned round-robin: consecutive stages
are on consecutive ranks, and every rank has a part of the model's beginning and of its end::

    P = 3, v = 2      rank 0          rank 1          rank 2
    chunk 0           stage 0   ──►   stage 1   ──►   stage 2  ──┐
    chunk 1       ┌─► stage 3   ──►   stage 4   ──►   stage 5    │
                  └──────────────────────────────────────────────┘

With one chunk, rank and stage are the same.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021, section 2.2.
"""

from jaxpipe.errors import PlanError
from jaxpipe.schedule.instruction import Schedule


def holder(stage: int, *, num_ranks: int) -> int:
    """Return the rank, within its pipeline, that holds a stage.

    >>> [holder(stage, num_ranks=3) for stage in range(6)]
    [0, 1, 2, 0, 1, 2]
    """
    return stage % num_ranks


def stages_held(rank: int, *, num_ranks: int, num_stages: int) -> range:
    """Return the stages that a rank of the pipeline holds, one per chunk, first chunk first.

    >>> list(stages_held(1, num_ranks=3, num_stages=6))
    [1, 4]
    """
    return range(rank, num_stages, num_ranks)


def count_stages(schedule: Schedule) -> int:
    """Return the number of stages of a schedule: ranks times chunks per rank.

    The number of chunks follows from the highest stage.

    >>> from jaxpipe.schedule.instruction import forward
    >>> count_stages(((forward(0, 0), forward(2, 0)), (forward(1, 0),)))
    4
    """
    num_ranks = len(schedule)
    # Rounded up to whole chunks: the highest stage need not be on the last rank.
    last = max((instruction.stage for program in schedule for instruction in program), default=0)
    return num_ranks * (1 + max(0, last) // num_ranks) if num_ranks else 0


def check_size(*, num_stages: int, num_microbatches: int) -> None:
    """Refuse a schedule without stages or without microbatches.

    >>> check_size(num_stages=0, num_microbatches=4)
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: `num_stages` (0) must be at least 1

    Raises:
        PlanError: `num_stages` or `num_microbatches` is less than one.
    """
    if num_stages < 1:
        raise PlanError(f"`num_stages` ({num_stages}) must be at least 1")
    if num_microbatches < 1:
        raise PlanError(f"`num_microbatches` ({num_microbatches}) must be at least 1")


def check_chunks(*, num_stages: int, num_chunks: int) -> None:
    """Refuse a number of chunks that does not divide the stages.

    >>> check_chunks(num_stages=6, num_chunks=4)
    Traceback (most recent call last):
    jaxpipe.errors.PlanError: `num_stages` (6) must be a multiple of `num_chunks` (4): every rank \
holds as many chunks

    Raises:
        PlanError: `num_chunks` is less than one, or does not divide `num_stages`.
    """
    if num_chunks < 1 or num_stages % num_chunks:
        raise PlanError(
            f"`num_stages` ({num_stages}) must be a multiple of `num_chunks` ({num_chunks}): every "
            "rank holds as many chunks"
        )
