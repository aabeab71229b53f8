"""The metrics of a run in its checkpoints, where these outlive the disk of rank 0.

::

    disk of rank 0     metrics.jsonl ──► checkpoint: metrics.safetensors ──► a copy on another host,
                            ▲                                │                or object storage
                            └── a resume without the file ◄──┘

On a shared folder they lie side by side, and checkpoints have none.
"""

import logging
from dataclasses import replace

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.foreign_file import read_regular
from jaxpipe.runtime.checkpoint.save_parts import Snapshot
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.records import METRICS_TENSOR, last_step
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.train_snapshot import Saved

logger = logging.getLogger(__name__)

_MOST_BYTES = 2**33


def with_metrics(snapshot: Snapshot, job: Job) -> Snapshot:
    """Return what rank 0 saves, with the metrics so far where checkpoints lie elsewhere."""
    if job.checkpoint.folder is None and not job.has_own_checkpoints:
        return snapshot
    content = np.frombuffer(read_regular(job.metrics_file, most_bytes=_MOST_BYTES), np.uint8)
    shards = {**snapshot.shards, METRICS_TENSOR: {METRICS_TENSOR: content}}
    return replace(snapshot, shards=shards)


def restore_metrics(job: Job, saved: Saved, *, num_steps: int) -> None:
    """Write the metrics of a checkpoint if this disk lacks some of `num_steps` steps; on rank 0.

    A checkpoint without metrics, as older versions wrote them, is no error: a warning says what is
    lost.
    """
    here = last_step(job.metrics_file)
    if here >= num_steps:
        return
    try:
        content = saved.read([METRICS_TENSOR])[METRICS_TENSOR].tobytes()
    except CheckpointError:
        logger.warning(
            "the metrics of steps %d to %d are lost: they are not in %s, nor in the checkpoint",
            here + 1,
            num_steps,
            job.metrics_file,
        )
        return
    job.folder.mkdir(parents=True, exist_ok=True)
    write_durably(job.metrics_file, content)
