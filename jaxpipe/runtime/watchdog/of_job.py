"""The watchdog of a rank of a job: its deadlines, and the ranks that each instruction waits for.

Not exported by the package: the interpreter imports the package, and a job the interpreter's room.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from math import inf
from pathlib import Path

from jaxpipe.comm import Transport
from jaxpipe.plan import Plan, island_of
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.watchdog import Cause, Deadlines, Seen, Watchdog, write_cause
from jaxpipe.runtime.watchdog.heartbeat_exchange import HeartbeatExchange
from jaxpipe.schedule import Bucket, Instruction, Op

_UNLEARNED_PART = 0.75
"""Of the timeout: the deadline of what has been seen too seldom to learn one."""


class StartWork(StrEnum):
    """What a rank does between the start of its watchdog and its first step."""

    COMPILE = "compile the stages"
    COMPILED = "wait for ranks that compile"
    CLOCKS = "compare the clocks"
    RESTORE = "restore the state"


def start_watchdog(
    job: Job,
    *,
    rank: int,
    end: Callable[[Cause], object] | None = None,
    transport: Transport | None = None,
) -> Watchdog:
    """Return the watchdog of a rank, not started; `end` is called with the cause of a hang.

    Over the `transport` it exchanges heartbeats with ranks that do not see the run folder.
    """
    seen = Seen(
        rank=rank,
        stage=job.plan.stages(rank)[0],
        num_ranks=job.plan.num_ranks,
        folder=job.folder,
        waits_for=_waits_within(job, rank=rank),
    )
    # Before the wait itself ends with an error, which names no link: ranks that wait for each other
    # begin to wait up to a step apart.
    unlearned_s = max(job.run.hang_s, _UNLEARNED_PART * job.run.timeout_s)
    deadlines = Deadlines(
        least_s=job.run.hang_s, unlearned_s=unlearned_s, phase_s=job.run.timeout_s
    )
    meet = None if transport is None else _meeting(job, transport)
    return Watchdog(seen, deadlines, end=end, meet=meet)


def begin_work(watch: Watchdog, job: Job, work: StartWork) -> None:
    """Record how far the start of a rank is, and for which ranks that waits.

    Compiling and restoring have no deadline of their own, but that of the ranks that wait for it:
    before it, these find only ranks that are stopped, and no slow ones.
    """
    others = tuple(rank for rank in range(job.plan.num_ranks) if rank != watch.rank)
    is_work = work in (StartWork.COMPILE, StartWork.RESTORE)
    limit_s = _UNLEARNED_PART * min(job.run.timeout_s, job.run.startup_timeout_s)
    watch.phase(
        work.value,
        step=-1,
        waits_for=() if work is StartWork.COMPILE else others,
        limit_s=inf if is_work else limit_s,
    )


def _meeting(job: Job, transport: Transport) -> Callable[[], HeartbeatExchange] | None:
    """Return what begins the exchange with the ranks on other disks; None if there are none."""
    if job.disks is None or job.disks.is_shared:
        return None
    leader_of = job.disks.leader_of
    others = [rank for rank, leader in enumerate(leader_of) if leader != leader_of[transport.rank]]
    keep = partial(write_cause, job.folder)
    return lambda: HeartbeatExchange(transport, others, on_cause=keep)


def no_watchdog(rank: int) -> Watchdog:
    """Return a watchdog that is never started, for runs without one."""
    seen = Seen(rank=rank, stage=0, num_ranks=1, folder=Path(), waits_for=lambda _: ())
    return Watchdog(seen, Deadlines(least_s=1.0, unlearned_s=1.0))


def _waits_within(job: Job, *, rank: int) -> Callable[[Instruction], tuple[int, ...]]:
    """Return `waits_for` of a rank of an island: within a step it waits for no other island."""
    island = island_of(job.plan, rank=rank, num_islands=max(1, job.outer.islands))
    first = island.ranks.start
    inside = waits_for(island.plan, rank=rank - first)
    return lambda instruction: tuple(first + other for other in inside(instruction))


def waits_for(plan: Plan, *, rank: int) -> Callable[[Instruction], tuple[int, ...]]:
    """Return a function from an instruction of this rank to the ranks that it waits for.

    A receive waits for the sender; the last all-reduce of a step, of `Bucket.SCALARS`, for all
    ranks; a gather, of what they have updated, for the other holders of the stage's segments.
    Everything else is the rank's own work.

    >>> from jaxpipe.plan import PlanConfig, default_plan
    >>> from jaxpipe.schedule import forward, gather, receive
    >>> from jaxpipe import topo
    >>> from jaxpipe.schedule import ScheduleKind
    >>> config = PlanConfig(
    ...     cluster="two-region",
    ...     stages=2,
    ...     replicas=2,
    ...     microbatch=1,
    ...     schedule=ScheduleKind.ONE_F_ONE_B,
    ... )
    >>> plan = default_plan(config, topo.load("two-region"), num_layers=4, batch=4, tied=False)
    >>> of_rank_3 = waits_for(plan, rank=3)
    >>> of_rank_3(receive(1, 0, 0)), of_rank_3(forward(1, 0)), of_rank_3(gather(1))
    ((2,), (), (1,))
    """
    # A send waits for nobody: it is asynchronous, and completed before the last all-reduce.
    others = tuple(other for other in range(plan.num_ranks) if other != rank)
    mine = plan.replica(rank)

    def ranks(instruction: Instruction) -> tuple[int, ...]:
        if instruction.op is Op.RECEIVE and instruction.peer is not None:
            return (plan.rank(replica=mine, stage=instruction.peer),)
        if instruction.op is Op.GATHER:
            segments = plan.segments_of(replica=mine, stage=instruction.stage)
            holders = {holder for segment in segments for holder in plan.holders(segment)}
            return tuple(sorted(holders - {rank}))
        return others if instruction.bucket is Bucket.SCALARS else ()

    return ranks
