"""The samples that a replica reads of the batch of a step: its own microbatches, and no others."""

from collections.abc import Sequence

import numpy as np

from jaxpipe.runtime.data import eval_batch, eval_numbers, sample, sample_numbers
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.step.interpreter import StepBatch

NO_STEP = -1
"""The step of an evaluation, whose spans are never kept."""


def train_step_batch(job: Job, *, rank: int, step: int) -> StepBatch:
    """Return the samples of a rank in a training step; they depend on seed and step alone."""
    if not _reads(job, rank):
        return _step_batch(job, rank, step)
    rows, batch, seed = _rows(job, rank), job.train.batch, job.run.seed
    data, labels = job.dataset.train, job.dataset.labels
    if labels is None:
        drawn = {"seed": seed, "step": step, "batch": batch, "rows": rows}
        return _step_batch(job, rank, step, sample(data, sequence=job.sequence, **drawn))
    numbers = sample_numbers(len(data), seed=seed, step=step, batch=batch, rows=rows)
    return _labelled(job, rank, step, numbers.tolist(), (data, labels.train))


def eval_step_batch(job: Job, *, rank: int, index: int) -> StepBatch:
    """Return the samples of a rank in one held-out batch."""
    if not _reads(job, rank):
        return _step_batch(job, rank, NO_STEP)
    rows, batch = _rows(job, rank), job.train.batch
    data, labels = job.dataset.eval, job.dataset.labels
    if labels is None:
        drawn = {"index": index, "batch": batch, "rows": rows}
        return _step_batch(job, rank, NO_STEP, eval_batch(data, sequence=job.sequence, **drawn))
    numbers = eval_numbers(index=index, batch=batch, rows=rows)
    return _labelled(job, rank, NO_STEP, numbers, (data, labels.eval))


def _reads(job: Job, rank: int) -> bool:
    """Return whether a rank reads samples: the first stage reads inputs, the last targets."""
    ends = {0, job.plan.pipeline(rank).num_stages - 1}
    return not ends.isdisjoint(job.plan.stages(rank))


def _rows(job: Job, rank: int) -> range:
    return job.plan.rows(job.plan.replica(rank))


def _labelled(
    job: Job,
    rank: int,
    step: int,
    numbers: Sequence[int],
    split: tuple[np.ndarray, np.ndarray],
) -> StepBatch:
    """Return the samples of these numbers of a split, which is inputs and labels."""
    shape = job.dataset.labelled_input
    assert shape is not None, job.dataset.source
    # A list: a memmap is copied only where rows are chosen one by one.
    inputs, labels = (np.asarray(each[list(numbers)]) for each in split)
    return _step_batch(job, rank, step, inputs.astype(shape.dtype), labels.astype(np.int32))


def _step_batch(
    job: Job,
    rank: int,
    step: int,
    samples: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> StepBatch:
    # Microbatches are consecutive rows: changing their size permutes no samples of a replica.
    pipeline = job.plan.pipeline(rank)
    lead = (pipeline.num_microbatches, pipeline.microbatch)
    return StepBatch(
        step=step,
        first_microbatch=job.plan.first_microbatch(job.plan.replica(rank)),
        samples=None if samples is None else samples.reshape(*lead, *samples.shape[1:]),
        labels=None if labels is None else labels.reshape(lead),
    )
