"""The samples that a replica reads of the batch of a step: its own microbatches, and no others."""

from jaxpipe.runtime.data import Samples
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.model import bottlenecks_of
from jaxpipe.runtime.step.step_batch import StepBatch

NO_STEP = -1
"""The step of an evaluation, whose spans are never kept."""


def train_step_batch(job: Job, *, rank: int, step: int) -> StepBatch:
    """Return the samples of a rank in a training step; they depend on seed and position alone."""
    if not _reads(job, rank):
        return _step_batch(job, rank, step)
    drawn = {"seed": job.run.seed, "step": step, "batch": job.drawn_batch}
    rows, first = _rows(job, rank), job.quorum.island * job.train.batch
    if job.quorum.is_on:  # each island has rows of its own
        rows = range(first + rows.start, first + rows.stop)
    samples = job.data.train_samples(**drawn, rows=rows, position=job.position)
    return _step_batch(job, rank, step, samples)


def eval_step_batch(job: Job, *, rank: int, index: int) -> StepBatch:
    """Return the samples of a rank in one held-out batch."""
    if not _reads(job, rank):
        return _step_batch(job, rank, NO_STEP)
    batch, rows = job.train.batch, _rows(job, rank)
    return _step_batch(
        job, rank, NO_STEP, job.data.eval_samples(index=index, batch=batch, rows=rows)
    )


def _reads(job: Job, rank: int) -> bool:
    """Return whether a rank reads samples: the first stage reads inputs, the last targets.

    All stages read which tokens of packed samples are of one document, and those behind a
    bottleneck the tokens.
    """
    if job.data.packed or bottlenecks_of(job.model):
        return True
    ends = {0, job.plan.pipeline(rank).num_stages - 1}
    return not ends.isdisjoint(job.plan.stages(rank))


def _rows(job: Job, rank: int) -> range:
    return job.plan.rows(job.plan.replica(rank))


def _step_batch(job: Job, rank: int, step: int, read: Samples | None = None) -> StepBatch:
    # Microbatches are consecutive rows: changing their size permutes no samples of a replica.
    pipeline = job.plan.pipeline(rank)
    lead = (pipeline.num_microbatches, pipeline.microbatch)
    labels = None if read is None else read.labels
    segments = None if read is None else read.segments
    return StepBatch(
        step=step,
        first_microbatch=job.plan.first_microbatch(job.plan.replica(rank)),
        samples=None if read is None else read.rows.reshape(*lead, *read.rows.shape[1:]),
        labels=None if labels is None else labels.reshape(*lead, *labels.shape[1:]),
        segments=None if segments is None else segments.reshape(*lead, *segments.shape[1:]),
    )
