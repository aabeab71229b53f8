"""Interleaved 1F1B: several chunks per rank, so that the pipeline fills in smaller steps."""

from collections.abc import Callable

from jaxpipe.errors import PlanError
from jaxpipe.schedule.generators.one_f_one_b import alternate
from jaxpipe.schedule.generators.schedule_facts import ScheduleFacts, ScheduleSize
from jaxpipe.schedule.instruction import Instruction, Program, Schedule, backward, forward
from jaxpipe.schedule.virtual_stages import check_chunks, check_size


def interleaved(*, num_stages: int, num_microbatches: int, num_chunks: int) -> Schedule:
    """Return the compute instructions of interleaved 1F1B.

    Each rank processes groups of num_ranks microbatches, one chunk after the other, and alternates
    backwards and forwards after a warm-up of 2 (p - r) - 1 + (v - 1) p forwards, for
    rank r of p with v chunks. With stages of equal duration the bubble is (p - 1) / (v m + p - 1)
    of the time, about a v-th of that of 1F1B; rank r keeps the residuals of min(v m, warm-up) pairs
    of stage and microbatch. Every microbatch crosses v times as many links.

    >>> from jaxpipe.schedule.render import render
    >>> schedule = interleaved(num_stages=4, num_microbatches=4, num_chunks=2)
    >>> print(render(schedule, num_columns=62))
    rank 0   0.0  1.0  0.1  1.1  2.0 [0.1] 3.0 [1.1] 2.1 [0.0]
    rank 1     .  0.0  1.0  0.1 [0.1] 1.1 [1.1] 2.0 [0.0] 3.0
    (slots 0 to 9 of 18; 98 columns show all)

    With one chunk it is eager 1F1B.

    Raises:
        PlanError: there are no stages or no microbatches, or ranks, chunks and microbatches do not
            divide each other.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2.2.
    """
    check_size(num_stages=num_stages, num_microbatches=num_microbatches)
    check_chunks(num_stages=num_stages, num_chunks=num_chunks)
    num_ranks = num_stages // num_chunks
    if num_microbatches % num_ranks:
        raise PlanError(
            f"`num_microbatches` ({num_microbatches}) must be a multiple of the {num_ranks} ranks, "
            "which take microbatches through their chunks in groups of that many"
        )
    return tuple(
        alternate(
            _pass(
                forward,
                range(rank, num_stages, num_ranks),
                num_ranks=num_ranks,
                num_microbatches=num_microbatches,
            ),
            _pass(
                backward,
                range(rank, num_stages, num_ranks)[::-1],  # gradients reach the last chunk first
                num_ranks=num_ranks,
                num_microbatches=num_microbatches,
            ),
            warmup=_warmup(rank, num_ranks=num_ranks, num_chunks=num_chunks),
        )
        for rank in range(num_ranks)
    )


def _warmup(rank: int, *, num_ranks: int, num_chunks: int) -> int:
    # A group through all chunks but the last, and the depth of eager 1F1B for that one.
    return 2 * (num_ranks - rank) - 1 + (num_chunks - 1) * num_ranks


def _most_live(size: ScheduleSize) -> list[int]:
    return [
        _warmup(rank, num_ranks=size.num_ranks, num_chunks=size.num_chunks)
        for rank in range(size.num_ranks)
    ]


INTERLEAVED = ScheduleFacts(generate=interleaved, most_live=_most_live, takes_chunks=True)


def _pass(
    compute: Callable[[int, int], Instruction],
    stages: range,
    *,
    num_ranks: int,
    num_microbatches: int,
) -> Program:
    return tuple(
        compute(stage, microbatch)
        for first in range(0, num_microbatches, num_ranks)
        for stage in stages
        for microbatch in range(first, first + num_ranks)
    )
