"""The samples that a replica reads of the batch of a step: its own microbatches, and no others."""

import numpy as np

from jaxpipe.runtime.data import eval_batch, sample
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.step.interpreter import StepBatch

NO_STEP = -1
"""The step of an evaluation, whose spans are never kept."""


def train_step_batch(job: Job, *, rank: int, step: int) -> StepBatch:
    """Return the samples of a rank in a training step; they depend on seed and step alone."""
    rows = _rows(job, rank)
    tokens = None
    if _reads(job, rank):
        tokens = sample(
            job.dataset.train,
            seed=job.run.seed,
            step=step,
            batch=job.train.batch,
            sequence=job.sequence,
            rows=rows,
        )
    return _step_batch(job, rank, step, tokens)


def eval_step_batch(job: Job, *, rank: int, index: int) -> StepBatch:
    """Return the samples of a rank in one held-out batch."""
    tokens = None
    if _reads(job, rank):
        tokens = eval_batch(
            job.dataset.eval,
            index=index,
            batch=job.train.batch,
            sequence=job.sequence,
            rows=_rows(job, rank),
        )
    return _step_batch(job, rank, NO_STEP, tokens)


def _reads(job: Job, rank: int) -> bool:
    """Return whether a rank reads tokens: the first stage reads inputs, the last targets."""
    return not {0, job.plan.num_stages - 1}.isdisjoint(job.plan.stages(rank))


def _rows(job: Job, rank: int) -> range:
    size = job.plan.num_microbatches * job.plan.microbatch
    first = job.plan.replica(rank) * size
    return range(first, first + size)


def _step_batch(job: Job, rank: int, step: int, tokens: np.ndarray | None) -> StepBatch:
    if tokens is not None:
        # Microbatches are consecutive rows: changing their size permutes no samples of a replica.
        tokens = tokens.reshape(job.plan.num_microbatches, job.plan.microbatch, -1)
    first = job.plan.replica(rank) * job.plan.num_microbatches
    return StepBatch(step=step, first_microbatch=first, tokens=tokens)
