"""One rank of a run: it opens its transport, receives the plan, and trains or paces.

::

    resolved by the launcher ───────────────────────────────┐
    rank 0: prepare ─► plan ──► broadcast ─► all ranks ─────┴─► train, or wait as if computing
                    └► refused ──► all ranks end with exit code 2, rank 0 says why
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.comm import BROADCAST_TAG, Transport, broadcast_bytes
from jaxpipe.config import Config, cluster_from, place_of
from jaxpipe.errors import UserError
from jaxpipe.plan import ResolvedPlan, parse_resolved_plan, resolved_plan_text
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.run.folder.prepare_run import begin_folder, introduce_run, prepare, report_complete
from jaxpipe.run.rank.apart import Place, find_place
from jaxpipe.run.rank.paced import run_paced
from jaxpipe.run.rank.train_rank import Member, train_rank
from jaxpipe.run.terminal.progress import Progress
from jaxpipe.run.terminal.rank_progress import rank_progress
from jaxpipe.runtime.checkpoint import Checkpoint, newest_valid
from jaxpipe.runtime.config import ComputeKind, TransportKind
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.runtime.open_transport import choose_transport, open_base
from jaxpipe.runtime.process.mpirun import LaunchedRank, check_launched_rank
from jaxpipe.topo import Cluster
from jaxpipe.topo.catalogue import parse_cluster
from jaxpipe.topo.write import cluster_toml


def _same_command(settings: Sequence[str]) -> str:
    """Return the line of a command that only its caller knows."""
    changes = "".join(f"--set {setting} " for setting in settings)
    return f"next: the same command with {changes}--resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """With what a rank starts.

    `resolved` is None on ranks of the user's own launcher: rank 0 then resolves the plan. Rank 0
    of a run that resumes has the `checkpoint`, or finds it. `place` is where the run has its
    folder, if ranks of the user's own launcher have found that out. `resume_line` returns the line
    that names the command that continues the run, with more settings. `lock` is the token of the
    lock of the folder, if a supervisor holds it; `is_supervised` says whether one continues the run
    after a stop for a new plan.
    """

    config: Config
    resume: bool = False
    resolved: ResolvedPlan | None = None
    checkpoint: Checkpoint | None = None
    cluster: Cluster | None = None
    place: Place | None = None
    hooks: Hooks = NO_HOOKS
    resume_line: Callable[[Sequence[str]], str] = _same_command
    lock: str | None = None
    is_supervised: bool = False


def run_rank(start: Start, *, is_launched: bool) -> int:
    """Run as one rank, and return the exit code; an error ends all ranks.

    `is_launched` says whether an MPI has started this process; if not, it is the only rank.

    Raises:
        UserError: the input is wrong.
        RunError: the run has failed.
    """
    transport = open_base(start.config.run, is_launched=is_launched)
    with ExitStack() as held:
        # Only a launcher of ours has resolved the plan before it starts ranks.
        has_launcher = is_launched and start.resolved is not None
        received = start if start.resolved is not None else receive_plan(transport, start, held)
        if received is None:
            return 0
        folder = Path(start.config.run.folder)
        with rank_progress(folder, rank=transport.rank, has_launcher=has_launcher) as say:
            return _run(received, transport, is_launched=is_launched, say=say)


def _run(
    start: Start, transport: Transport, *, is_launched: bool, say: Callable[[Progress], None]
) -> int:
    """Train or pace as a rank that has the plan."""
    config = start.config
    resolved = start.resolved
    assert resolved is not None, "the plan has been received"
    if config.run.compute is ComputeKind.PACED:
        return run_paced(config, resolved.plan, transport, cluster=start.cluster, say=say)
    try:
        # A launcher has checked the checkpoints, but passes none on to its ranks.
        if start.resume and start.checkpoint is None and transport.rank == 0:
            start = replace(start, checkpoint=newest_valid(place_of(config)))
        transport = _configured(start, resolved, base=transport)
    except BaseException as error:
        transport.close(error=error)
        raise
    member = Member(
        config=config,
        transport=transport,
        devices=resolved.devices,
        hooks=start.hooks,
        resume_line=start.resume_line,
        is_launched=is_launched,
        is_supervised=start.is_supervised,
        say=say,
        disks=None if start.place is None else start.place.disks,
    )
    found = start.checkpoint
    if start.place is not None and start.place.available is not None:
        found = start.place.available
    return train_rank(member, resolved, resume=start.resume, found=found)


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
    refusal: UserError | None = None
    payload: bytes | None = None
    try:
        place = find_place(transport, start.config, held, resume=start.resume, lock=start.lock)
        start = replace(start, place=place)
    except UserError:  # which all ranks have found
        transport.close()
        raise
    except BaseException as error:
        transport.close(error=error)
        raise
    try:
        if transport.rank == 0:
            try:
                start = _prepared(start, held, num_started=transport.num_ranks)
                resolved = start.resolved
                payload = _COMPLETE if resolved is None else resolved_plan_text(resolved).encode()
            except UserError as error:
                refusal, payload = error, _REFUSED
        # After a refusal too: the others wait for this message.
        text = broadcast_bytes(
            transport,
            payload,
            root=0,
            tag=BROADCAST_TAG,
            timeout_s=start.config.run.startup_timeout_s,
        )
    except BaseException as error:
        transport.close(error=error)
        raise
    if text == _REFUSED:
        transport.close()
        raise refusal or UserError("rank 0 has refused the input")
    if text == _COMPLETE:
        transport.close()
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
    held.enter_context(locked(Path(start.config.run.folder), token=start.lock))
    folder, place = Path(start.config.run.folder), start.place
    found = None if place is None else place.checkpoint(folder)
    prepared = prepare(start.config, resume=start.resume, found=found, num_ranks=num_started)
    here = LaunchedRank(rank=0, num_ranks=num_started)
    check_launched_rank(here, num_ranks=prepared.plan.num_ranks)
    if prepared.is_complete:
        report_complete(prepared)
        return start
    begin_folder(prepared)
    if start.config.run.compute is ComputeKind.REAL:
        introduce_run(prepared)
    return replace(
        start,
        resolved=prepared.resolved,
        checkpoint=prepared.checkpoint,
        cluster=prepared.cluster,
    )


def _configured(start: Start, resolved: ResolvedPlan, *, base: Transport) -> Transport:
    """Return the transport that the configuration asks for, around that of the MPI."""
    run, cluster = start.config.run, start.cluster
    if run.transport is TransportKind.SHAPED and cluster is None:
        cluster = cluster_from(start.config)  # its links, which a plan does not hold
    return choose_transport(run, resolved.plan, cluster, base=base)
