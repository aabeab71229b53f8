"""Which rank of a pipeline holds which stage.

A pipeline of P ranks with v chunks each has P v stages, dealt out in turn, so that consecutive
stages are on consecutive ranks and every rank has a part of the model's beginning and of its end::

    P = 3, v = 2      rank 0          rank 1          rank 2
    chunk 0           stage 0   ──►   stage 1   ──►   stage 2  ──┐
    chunk 1       ┌─► stage 3   ──►   stage 4   ──►   stage 5    │
                  └──────────────────────────────────────────────┘

With one chunk, rank and stage are the same. In a pipeline of one rank, all neighbours are at home.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021, section 2.2.
"""

from jaxpipe.schedule.instruction import Schedule


def holder(stage: int, *, num_ranks: int) -> int:
    """Return the rank, within its pipeline, that holds a stage.

    >>> [holder(stage, num_ranks=3) for stage in range(6)]
    [0, 1, 2, 0, 1, 2]
    """
    return stage % num_ranks


def stages_held(rank: int, *, num_ranks: int, num_stages: int) -> range:
    """Return the stages that a rank of the pipeline holds, one to a chunk, first chunk first.

    >>> list(stages_held(1, num_ranks=3, num_stages=6))
    [1, 4]
    """
    return range(rank, num_stages, num_ranks)


def count_stages(schedule: Schedule) -> int:
    """Return the number of stages of a schedule: that of its ranks times that of their chunks.

    There are as many chunks as the last stage that is named needs.

    >>> from jaxpipe.schedule.instruction import forward
    >>> count_stages(((forward(0, 0), forward(2, 0)), (forward(1, 0),)))
    4
    """
    num_ranks = len(schedule)
    last = max((each.stage for program in schedule for each in program), default=0)
    return num_ranks * (1 + max(0, last) // num_ranks) if num_ranks else 0
