"""Resume a job whose hosts share no folder: each rank gets the files of its own stages."""

from collections.abc import Iterable

from jaxpipe.comm import Transport
from jaxpipe.outer import saved_outer
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.checkpoint.own_disks.available import Available, newest_available
from jaxpipe.runtime.checkpoint.own_disks.fetch import fetch
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.records import METRICS_TENSOR
from jaxpipe.runtime.train_snapshot import needed_tensors


def fetched_checkpoint(
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


def gather_on_rank_0(job: Job, transport: Transport) -> None:
    """Bring all files of the last checkpoint to the disk of rank 0, which ends with a whole model.

    All ranks call this once everything is saved; it does nothing where they share a folder.

    Raises:
        CheckpointError: a file could not be read, written or verified.
        DeadlineError: a message took longer than `run.startup_timeout_s`.
    """
    if job.disks is None or not job.has_own_checkpoints:
        return
    timeout_s = job.run.startup_timeout_s
    last = newest_available(transport, job.disks, job.folder, timeout_s=timeout_s)
    every = last.on_disk(job.folder, leader=0).names_by_file
    needs = every if transport.rank == 0 else ()
    fetch(transport, job.disks, job.folder, last, needs=needs, timeout_s=timeout_s)
