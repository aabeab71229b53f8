"""The beginning of a run whose hosts may share no folder: what precedes its plan.

::

    all ranks      which of them see the same folder? ─► one folder: rank 0 looks into it alone
                                                     └─► several disks:
    their leaders  lock the folder ─► refused? ─► all ranks end, rank 0 says why
    all ranks      --resume: the newest checkpoint that is whole on the disks together
                   else: no disk may have a checkpoint
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.comm import GATHER_TAG, Transport, first_text
from jaxpipe.config import Config
from jaxpipe.errors import ConfigError, UserError
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.run.folder.prepare_run import forget_last_end
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.runtime.checkpoint.own_disks.available import (
    Available,
    base_folder,
    newest_available,
)
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.checkpoint.own_disks.find_disks import find_disks
from jaxpipe.runtime.config import ComputeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run has its folder: its disks, and what they hold of the run that resumes.

    `available` is None for a run that begins, and where all ranks share one folder.
    """

    disks: Disks
    available: Available | None = None

    def checkpoint(self, folder: Path) -> Checkpoint | None:
        """Return the checkpoint on the disk of rank 0, with the files that it holds."""
        found = self.available
        if found is None:
            return None
        base = base_folder(folder, found.content, step=found.step)
        return found.on_disk(base, leader=0)


def find_place(
    transport: Transport,
    config: Config,
    held: ExitStack,
    *,
    resume: bool,
    lock: str | None = None,
) -> Place | None:
    """Return where the run has its folder; all ranks call this. None for a paced run.

    Each disk's folder is locked until `held` is closed, except that of rank 0, who locks it later,
    and the one whose `lock` a supervisor holds.

    Raises:
        UserError: a folder cannot be written or is in use, there is no whole checkpoint to resume
            from, or a run that begins would overwrite one; all ranks raise it.
        DeadlineError: a message took longer than `run.startup_timeout_s`.
    """
    if config.run.compute is ComputeKind.PACED or transport.num_ranks == 1:
        return None
    folder, timeout_s = Path(config.run.folder), config.run.startup_timeout_s
    disks = find_disks(transport, folder, timeout_s=timeout_s)
    if disks.is_shared:
        return Place(disks=disks)
    refusal = ""
    if disks.leads(transport.rank):
        refusal = _held_elsewhere(folder, disks, rank=transport.rank, resume=resume)
    if not refusal and disks.leads(transport.rank) and transport.rank:
        refusal = _lock(folder, held, disks, rank=transport.rank, token=lock)
    if refusal := first_text(transport, refusal, tag=GATHER_TAG, timeout_s=timeout_s):
        raise ConfigError(refusal)
    if not resume or config.checkpoint.folder is not None:
        return Place(disks=disks)
    available = newest_available(transport, disks, folder, timeout_s=timeout_s)
    return Place(disks=disks, available=available)


def _held_elsewhere(folder: Path, disks: Disks, *, rank: int, resume: bool) -> str:
    """Return why the run cannot begin on this disk: it holds another one."""
    if not resume and committed_folders(folder):
        return (
            f"a run does not overwrite another: `run.folder` {folder} on {disks.hosts[rank]} holds "
            "checkpoints; continue with --resume, or name another folder"
        )
    return ""


def _lock(folder: Path, held: ExitStack, disks: Disks, *, rank: int, token: str | None) -> str:
    """Lock the folder of this disk, and return why the run cannot use it."""
    try:
        held.enter_context(locked(folder, token=token))
        forget_last_end(folder)
    except UserError as error:
        return f"{error} (on {disks.hosts[rank]})"
    return ""
