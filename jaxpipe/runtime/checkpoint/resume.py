"""Resume a run: the checkpoint that all ranks can read, and on each rank what it needs of it.

::

    one folder         rank 0 chooses ─► every rank opens the same
    several disks      every rank gets the files of its own stages from the disks that have them
    object storage     every rank reads the tensors of its own stages, by their ranges, and verifies
                       them ─► any that are not intact? ─► the next older checkpoint
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxpipe.comm import BROADCAST_TAG, FILE_TAG, Transport, broadcast_bytes, first_text
from jaxpipe.errors import CheckpointError
from jaxpipe.outer import saved_outer
from jaxpipe.runtime.checkpoint import Checkpoint, newest_valid, open_checkpoint
from jaxpipe.runtime.checkpoint.own_disks.available import Available
from jaxpipe.runtime.checkpoint.own_disks.fetch import fetch
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.records import METRICS_TENSOR
from jaxpipe.runtime.outer.outer_snapshot import needed_outer_tensors
from jaxpipe.runtime.storage.object_folder import folder_named
from jaxpipe.runtime.train_snapshot import Saved, needed_tensors

logger = logging.getLogger(__name__)


def resumed_state(
    job: Job,
    transport: Transport,
    found: Checkpoint | Available | None,
    *,
    timeout_s: float,
) -> Saved | None:
    """Return the state from which this rank continues, None for none; all ranks call this.

    Rank 0 has `found` the newest checkpoint whose headers are intact, if any; where the hosts share
    no folder, all ranks have found which files are on which disk.

    Raises:
        CheckpointError: a file cannot be read, written or verified, or none is intact.
        DeadlineError: a message took longer than `timeout_s`.
    """
    if isinstance(found, Available):
        return _fetched(job, transport, found, timeout_s=timeout_s)
    if job.checkpoint.folder is not None:
        return _intact(job, transport, found, timeout_s=timeout_s)
    return agree_on_checkpoint(transport, found, timeout_s=timeout_s)


def agree_on_checkpoint(
    transport: Transport, found: Checkpoint | None, *, timeout_s: float
) -> Checkpoint | None:
    """Open the checkpoint that rank 0 has `found` on all ranks, if any; the others pass None.

    One rank chooses among several: ranks that read at different times could find different ones
    broken, and would train different models.

    Raises:
        CheckpointError: the manifest cannot be read here, because the hosts do not share it.
        DeadlineError: rank 0 did not answer in time.
    """
    name = None
    if transport.rank == 0:
        name = b"" if found is None else str(found.folder).encode()  # a broadcast has a payload
    folder = broadcast_bytes(transport, name, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    return open_checkpoint(folder_named(folder.decode())) if folder else None


def _fetched(
    job: Job, transport: Transport, available: Available, *, timeout_s: float
) -> Checkpoint:
    """Return the checkpoint, on this rank's disk, with what it needs; all ranks call this.

    An outer loop has tensors of its own for each island: there every disk gets all files.

    Raises:
        CheckpointError: a file could not be read, written or verified; all ranks raise it.
        DeadlineError: a message took longer than `timeout_s`.
    """
    assert job.disks is not None, "the ranks share a folder"
    described = available.on_disk(job.folder, leader=job.disks.leader_of[transport.rank])
    files = described.names_by_file
    needs: Iterable[str] = files
    if transport.rank >= job.plan.num_ranks:  # a spare rank of a job that has shrunk
        needs = ()
    elif not (job.outer.is_on or saved_outer(described.metadata).is_on):
        names = needed_tensors(job, rank=transport.rank)
        if transport.rank == 0:
            names = (*names, METRICS_TENSOR)
        needs = {described.tensors[name].file for name in names if name in described.tensors}
    return fetch(transport, job.disks, job.folder, available, needs=needs, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadCheckpoint:
    """A checkpoint of which some tensors are in memory, until they are read once from here."""

    checkpoint: Checkpoint
    held: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        """The number of steps trained."""
        return self.checkpoint.step

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Those of the checkpoint."""
        return self.checkpoint.metadata

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Those of the checkpoint, in memory or not."""
        return self.checkpoint.tensors

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return tensors by their names, those that are not in memory from object storage.

        Raises:
            CheckpointError: one is missing or corrupt.
        """
        wanted = tuple(names)
        found = {name: self.held.pop(name) for name in wanted if name in self.held}
        return found | self.checkpoint.read(name for name in wanted if name not in found)


def _intact(
    job: Job, transport: Transport, found: Checkpoint | None, *, timeout_s: float
) -> Saved | None:
    """Return the newest checkpoint that is intact for all ranks; all ranks call this.

    Rank 0 has `found` the newest one whose headers are intact, if any; without one, all return
    None.

    Raises:
        CheckpointError: none is intact; all ranks raise it.
        DeadlineError: a message took longer than `timeout_s`.
    """
    while True:
        checkpoint = agree_on_checkpoint(transport, found, timeout_s=timeout_s)
        if checkpoint is None:
            return None
        held, problem = _read(checkpoint, _needed(job, checkpoint, rank=transport.rank))
        problem = first_text(transport, problem, tag=FILE_TAG, timeout_s=timeout_s)
        if not problem:
            return _ReadCheckpoint(checkpoint=checkpoint, held=held)
        older = ""
        if transport.rank == 0:
            try:
                found = newest_valid(job.checkpoints, before=checkpoint.step)
            except CheckpointError:
                older = problem
            else:
                logger.warning("%s; the run resumes from step %d", problem, found.step)
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
