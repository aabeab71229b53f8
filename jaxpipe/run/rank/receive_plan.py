"""With what a rank starts, and how ranks of the user's own launcher receive what they lack.

::

    all ranks      which of them see the same folder? ─► one folder: rank 0 looks into it alone
                                                     └─► several disks:
    their leaders  lock the folder ─► refused? ─► all ranks end, rank 0 says why
    all ranks      --resume: the newest checkpoint that is whole on the disks together
                   else: no disk may have a checkpoint
    rank 0         prepare ─► plan ──► broadcast ─► all ranks start
                   └► refused ──► all ranks end with exit code 2, rank 0 says why
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.comm import BROADCAST_TAG, GATHER_TAG, Transport, broadcast_bytes, first_text
from jaxpipe.config import Config
from jaxpipe.errors import ConfigError, UserError
from jaxpipe.plan import Plan, ResolvedPlan, parse_resolved_plan, resolved_plan_text
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.run.folder.prepare_run import (
    begin_run,
    forget_last_end,
    prepare,
    report_complete,
)
from jaxpipe.run.train_request import TrainRequest
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.runtime.checkpoint.own_disks.available import (
    Available,
    base_folder,
    newest_available,
)
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.checkpoint.own_disks.find_disks import find_disks
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.runtime.process.launched_rank import LaunchedRank, check_launched_rank
from jaxpipe.runtime.run_config import ComputeKind, TransportKind
from jaxpipe.topo import Cluster
from jaxpipe.topo.catalogue import parse_cluster
from jaxpipe.topo.write import cluster_toml


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """With what a rank starts.

    `is_launched` says whether an MPI has started this process; if not, it is the only rank.
    `resolved` is None on ranks of the user's own launcher: rank 0 then resolves the plan. Rank 0
    of a run that resumes has the `checkpoint`, or finds it. `place` is where the run has its
    folder, if ranks of the user's own launcher have found that out.
    """

    request: TrainRequest
    config: Config
    hooks: Hooks = NO_HOOKS
    is_launched: bool = True
    resolved: ResolvedPlan | None = None
    checkpoint: Checkpoint | None = None
    cluster: Cluster | None = None
    place: Place | None = None

    @property
    def plan(self) -> Plan:
        """The plan, once it has been received."""
        assert self.resolved is not None, "the plan has been received"
        return self.resolved.plan

    @property
    def found(self) -> Checkpoint | Available | None:
        """The checkpoint from which the run resumes, as far as this rank knows it."""
        if self.place is not None and self.place.available is not None:
            return self.place.available
        return self.checkpoint


_REFUSED, _COMPLETE = b"", b"complete"
"""What rank 0 broadcasts in place of a plan."""


def receive_plan(transport: Transport, start: Start, held: ExitStack) -> Start | None:
    """Return `start` with the plan that rank 0 has resolved; all ranks call this.

    Return None, with the transport closed, if the run that should resume is complete.

    Rank 0 holds the lock of the run's folder until `held` is closed. Where the input is wrong, all
    ranks close the transport in order and raise: rank 0 what it has found, which is printed once,
    the others after it.

    Raises:
        UserError: the input is wrong.
        DeadlineError: a message took longer than `run.startup_timeout_s`.
    """
    try:
        received = _received(transport, start, held)
    except UserError:  # on all ranks
        transport.close()
        raise
    except BaseException as error:
        transport.close(error=error)
        raise
    if received is None:
        transport.close()
    return received


def _received(transport: Transport, start: Start, held: ExitStack) -> Start | None:
    place = find_place(transport, start, held)
    start = replace(start, place=place)
    refusal: UserError | None = None
    payload: bytes | None = None
    if transport.rank == 0:
        try:
            start = _prepared(start, held, num_started=transport.num_ranks)
            resolved = start.resolved
            payload = _COMPLETE if resolved is None else resolved_plan_text(resolved).encode()
        except UserError as error:
            refusal, payload = error, _REFUSED
    # After a refusal too: the others wait for this message.
    timeout_s = start.config.run.startup_timeout_s
    text = broadcast_bytes(transport, payload, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    if text == _REFUSED:
        raise refusal or UserError("rank 0 has refused the input")
    if text == _COMPLETE:
        return None
    start = _with_cluster(start, transport)
    if start.resolved is not None:
        return start
    return replace(start, resolved=parse_resolved_plan(text.decode(), source="the plan of rank 0"))


def _with_cluster(start: Start, transport: Transport) -> Start:
    """Return `start` with the cluster of rank 0, if all ranks need it and it is in a file.

    That of an adopted plan is on rank 0's disk alone.
    """
    run, file = start.config.run, start.config.plan.cluster
    if run.transport is not TransportKind.SHAPED or not file.partition(":")[0].endswith(".toml"):
        return start
    sent = None
    if transport.rank == 0:
        assert start.cluster is not None, "rank 0 has prepared the run"
        sent = cluster_toml(start.cluster).encode()
    text = broadcast_bytes(
        transport, sent, root=0, tag=BROADCAST_TAG, timeout_s=run.startup_timeout_s
    )
    return replace(start, cluster=start.cluster or parse_cluster(text.decode()))


def _prepared(start: Start, held: ExitStack, *, num_started: int) -> Start:
    """Return `start` with what a launcher would have prepared, in the locked folder.

    A run that is complete has no plan.
    """
    held.enter_context(locked(Path(start.config.run.folder), token=start.request.lock))
    place, resume = start.place, start.request.resume
    found = None if place is None else place.checkpoint(Path(start.config.run.folder))
    prepared = prepare(
        start.config,
        resume=resume,
        found=found,
        num_ranks=num_started,
        allowed=start.request.allow_changed,
    )
    here = LaunchedRank(rank=0, num_ranks=num_started)
    check_launched_rank(here, num_ranks=prepared.plan.num_ranks)
    if prepared.is_complete:
        report_complete(prepared)
        return start
    begin_run(prepared, over_hosts=start.request.lock is not None)
    return replace(
        start,
        resolved=prepared.resolved,
        checkpoint=prepared.checkpoint,
        cluster=prepared.cluster,
    )


def find_place(transport: Transport, start: Start, held: ExitStack) -> Place | None:
    """Return where the run has its folder; all ranks call this. None for a paced run.

    Each disk's folder is locked until `held` is closed, except that of rank 0, who locks it later,
    and the one whose lock a supervisor holds.

    Raises:
        UserError: a folder cannot be written or is in use, there is no whole checkpoint to resume
            from, or a run that begins would overwrite one; all ranks raise it.
        DeadlineError: a message took longer than `run.startup_timeout_s`.
    """
    config, resume = start.config, start.request.resume
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
        refusal = _lock(folder, held, disks, rank=transport.rank, token=start.request.lock)
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
