"""The plan with which a run continues on other devices: after a loss, a join, or a return.

::

    running plan ─┐
    devices       ├─► candidates ─► least cost that the configuration accepts ─► plan file ─► run
    that remain ──┘       └─► none: the same with another schedule

A field that the running plan decides stays as it is where it can: schedule, stages of a rank, size
of a microbatch, warm-up, codecs, devices of a rank. A line names those that had to change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, check_plan_fits, cluster_from
from jaxpipe.config.read import BESIDE_FILE
from jaxpipe.errors import UserError
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import Plan, PlanConfig, check_plan, fitting_islands, write_plan
from jaxpipe.plan.cost import Profile
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.run.supervise.remaining_groups import remaining_groups
from jaxpipe.schedule import ScheduleKind
from jaxpipe.schedule.remat import Remat
from jaxpipe.search.remaining import Future, Remaining, Replanned, candidates, choose
from jaxpipe.topo import Cluster

_FALLBACK = ScheduleKind.ONE_F_ONE_B
"""The schedule of plans that the running one does not fit: it takes any stages and microbatches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPlan:
    """A plan that follows another: what it costs, and the section `outer` that fits its replicas.

    `changes` are the fields of the plan before that had to change, one phrase for each.
    """

    replanned: Replanned
    outer: OuterConfig
    changes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.replanned.plan

    def write(self, cluster: Cluster, file: Path, *, before: OuterConfig) -> tuple[str, ...]:
        """Write the file of the plan, and return the settings with which a run continues with it.

        Raises:
            OSError: the file cannot be written.
        """
        write_plan(self.plan, cluster, file, about="The plan with which the run continues.")
        outer = (
            f"outer.{name}={getattr(self.outer, name)}"
            for name in ("islands", "codec")
            if getattr(self.outer, name) != getattr(before, name)
        )
        return (f"plan.file={file}", *outer)


def with_plan_file(config: Config, file: Path) -> Config:
    """Return the configuration with the plan of a file."""
    kept: dict[str, Any] = {name: getattr(config.plan, name) for name in BESIDE_FILE}
    kept["file"] = str(file)
    return replace(config, plan=PlanConfig(**kept))


def next_plan(
    config: Config,
    running: Plan,
    devices: Sequence[int],
    *,
    cluster: Cluster | None = None,
    moves: bool = True,
) -> NextPlan | None:
    """Return the best plan on some devices of the cluster, after the running one; None: none fits.

    The best has the least sum of `run.change_every` steps and, if the state `moves` between ranks,
    the seconds of that. Ranks on the devices are numbered in this order where nothing else decides.
    The all-reduce stays: to choose again takes seconds with hundreds of ranks.
    """
    cluster = cluster or cluster_from(config)
    if not devices:
        return None
    remat = config.train.remat or running.remat
    config = replace(config, train=replace(config.train, remat=remat))
    profile, slow = _costs(config, cluster)
    groups = remaining_groups(running, devices, cluster, slow)
    remaining = Remaining(
        running=running,
        devices=groups.leads,
        profile=profile,
        slow=groups.slow,
        peers=groups.peers,
    )
    search = _Search(config=config, cluster=cluster, moves=moves)
    best = search.best(remaining)
    if best is None and (running.schedule is not _FALLBACK or running.num_chunks > 1):
        best = search.best(replace(remaining, schedule=_FALLBACK))
    if best is None:
        return None
    return NextPlan(
        replanned=best,
        outer=_resized(config.outer, running, num_replicas=best.plan.num_replicas),
        changes=tuple(changed_fields(running, best.plan)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A search for the plan that follows, of a configured run on a cluster."""

    config: Config
    cluster: Cluster
    moves: bool

    def best(self, remaining: Remaining) -> Replanned | None:
        """Return the plan of the least cost that the configuration accepts."""
        config, running = self.config, remaining.running

        def is_accepted(plan: Plan) -> bool:
            outer = _resized(config.outer, running, num_replicas=plan.num_replicas)
            return _is_accepted(replace(config, outer=outer), plan, self.cluster)

        future = Future(
            cluster=self.cluster,
            each=bytes_each(config.model, config.optimizer),
            num_steps=config.run.change_every,
            # With a sharded optimizer no rank has all moments of its stage: all read a checkpoint.
            moves=self.moves and not config.optimizer.sharded,
            chunk_bytes=config.comm.chunk_bytes,
            per_island=_per_island(config.outer, running),
            outer_every=config.outer.every,
        )
        return choose(remaining, future, candidates(remaining), is_accepted)


def changed_fields(before: Plan, after: Plan) -> list[str]:
    """Return the fields of a plan that the next one does not keep, one phrase for each."""
    changes: list[str] = []
    values = {
        "schedule": (before.schedule_name, after.schedule_name),
        "num_chunks": (f"{before.num_chunks}", f"{after.num_chunks}"),
    }
    for field, (old, new) in values.items():
        if old != new:
            changes.append(f"`{field}` {old} -> {new}")
    sizes = {pipeline.microbatch for pipeline in before.pipelines}
    new_sizes = {pipeline.microbatch for pipeline in after.pipelines}
    if not new_sizes <= sizes:
        changes.append(f"`microbatch` {_listed(sizes)} -> {_listed(new_sizes)}")
    for field in ("warmup", "codecs", "data_parts"):
        had = any(getattr(pipeline, field) for pipeline in before.pipelines)
        if had and not any(getattr(pipeline, field) for pipeline in after.pipelines):
            changes.append(f"no `{field}`")
    return changes


def _listed(sizes: set[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _per_island(outer: OuterConfig, running: Plan) -> int | None:
    """Return the replicas of an island of the running plan; None without an outer loop."""
    return max(1, running.num_replicas // outer.islands) if outer.is_on else None


def _resized(outer: OuterConfig, running: Plan, *, num_replicas: int) -> OuterConfig:
    """Return the section `[outer]` with as many islands as replicas fill.

    A single island sends nothing, and needs no codec.
    """
    per_island = _per_island(outer, running)
    if per_island is None:
        return outer
    islands = fitting_islands(num_replicas, per_island=per_island)
    return replace(outer, islands=islands, codec=outer.codec if islands > 1 else CodecKind.NONE)


def _costs(config: Config, cluster: Cluster) -> tuple[Profile, np.ndarray]:
    """Return what the model costs, and how much slower each device is than its profile.

    If the speed of a device is unknown, all are equal, and so slow that messages do not matter.
    """
    try:
        conditions = conditions_of(config, cluster)
    except UserError:
        profile = gpt_profile(config.model, remat=config.train.remat or Remat.NONE, flops_per_s=1.0)
        return profile, np.ones(len(cluster))
    return conditions.profile, conditions.slow


def _is_accepted(config: Config, plan: Plan, cluster: Cluster) -> bool:
    try:
        check_plan(plan, num_devices=len(cluster))
        check_plan_fits(config, plan)
    except UserError:
        return False
    return True
