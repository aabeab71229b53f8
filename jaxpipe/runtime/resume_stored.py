"""Resume from object storage: each rank reads the tensors of its own stages, by their ranges.

::

    rank 0         the newest checkpoint whose manifest and headers are intact
    every rank     read its tensors, verify them ─► any that are not intact? ─► the next older one
                                                └─► train
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxpipe.comm import FILE_TAG, Transport, first_text
from jaxpipe.errors import CheckpointError
from jaxpipe.outer import saved_outer
from jaxpipe.runtime.checkpoint import Checkpoint, newest_valid
from jaxpipe.runtime.checkpoint.agree import agree_on_checkpoint
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.outer_snapshot import needed_outer_tensors
from jaxpipe.runtime.train_snapshot import Saved, needed_tensors

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCheckpoint:
    """A checkpoint of which some tensors are in memory, until they are read once from here."""

    checkpoint: Checkpoint
    tensors: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        """The number of steps trained."""
        return self.checkpoint.step

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Those of the checkpoint."""
        return self.checkpoint.metadata

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return tensors by their names, those that are not in memory from object storage.

        Raises:
            CheckpointError: one is missing or corrupt.
        """
        wanted = tuple(names)
        tensors = {name: self.tensors.pop(name) for name in wanted if name in self.tensors}
        return tensors | self.checkpoint.read(name for name in wanted if name not in tensors)


def stored_checkpoint(
    job: Job, transport: Transport, resumed: Checkpoint | None, *, timeout_s: float
) -> Saved | None:
    """Return the newest checkpoint that is intact for all ranks; all ranks call this.

    Rank 0 gives the newest one whose headers are intact, if any, as `resumed`; without one, all
    return None.

    Raises:
        CheckpointError: none is intact; all ranks raise it.
        DeadlineError: a message took longer than `timeout_s`.
    """
    while True:
        checkpoint = agree_on_checkpoint(transport, resumed, timeout_s=timeout_s)
        if checkpoint is None:
            return None
        tensors, problem = _read(checkpoint, _needed(job, checkpoint, rank=transport.rank))
        problem = first_text(transport, problem, tag=FILE_TAG, timeout_s=timeout_s)
        if not problem:
            return ReadCheckpoint(checkpoint=checkpoint, tensors=tensors)
        older = ""
        if transport.rank == 0:
            try:
                resumed = newest_valid(job.checkpoints, before=checkpoint.step)
            except CheckpointError:
                older = problem
            else:
                logger.warning("%s; the run resumes from step %d", problem, resumed.step)
        if first_text(transport, older, tag=FILE_TAG, timeout_s=timeout_s):
            raise CheckpointError(problem)


def _needed(job: Job, checkpoint: Checkpoint, *, rank: int) -> Iterable[str]:
    if rank >= job.plan.num_ranks:  # a spare rank of a job that has shrunk
        return ()
    before = saved_outer(checkpoint.metadata)
    if job.outer.is_on or before.is_on:
        return needed_outer_tensors(job, checkpoint.tensors, rank=rank, before=before)
    return needed_tensors(job, rank=rank)


def _read(checkpoint: Checkpoint, names: Iterable[str]) -> tuple[dict[str, np.ndarray], str]:
    """Return tensors, and why they are not whole; those that are missing are found missing later.

    An import has no moments.
    """
    try:
        return checkpoint.read(name for name in names if name in checkpoint.tensors), ""
    except CheckpointError as error:
        return {}, str(error)
