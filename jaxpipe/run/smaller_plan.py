"""Another plan for a run that has lost ranks, or has them back.

A plan file has one plan for one set of devices. The plan that follows it is described by fields of
the section `plan`, as far as these can say what the file says.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.config import Config, cluster_from
from jaxpipe.errors import UserError
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import Pipeline, Plan, PlanConfig, check_islands, fitting_islands
from jaxpipe.plan.cost import Profile
from jaxpipe.plan.partition import even_partition
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.propose.resolve import plan_from
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.remaining import Future, Remaining, Replanned, candidates, choose
from jaxpipe.topo import Cluster

_SIZES = ("plan.stages", "plan.replicas", "plan.cut", "plan.cuts", "plan.shares")
_OF_FILE = ("file", "schedule", "microbatch", "chunks", "all_reduce")
"""Fields that a plan file decides, and that stay when the plan is made again."""


def smaller(
    config: Config, settings: Sequence[str], *, devices: Sequence[str] = ()
) -> tuple[str, ...] | None:
    """Return settings for the fastest plan with fewer ranks; None if there is none.

    `settings` are those that `config` was read with; they are kept, except for the size of a plan.
    `devices` names the remaining devices, for example without the one of a lost rank. All ranks
    read a checkpoint, so no state moves.

    Raises:
        UserError: the plan file cannot be read, or is for another cluster.
    """
    num_ranks = config.plan.num_ranks
    if config.plan.file is not None:
        num_ranks = plan_from(config).num_ranks
    if num_ranks is None:
        return None
    found = within(config, num_ranks=num_ranks - 1, devices=devices, moves=False)
    if found is None:
        return None
    return plan_settings(found, settings, before=config, names_devices=bool(devices))


def plan_settings(
    found: Config, settings: Sequence[str], *, before: Config, names_devices: bool
) -> tuple[str, ...]:
    """Return settings with which a configuration has the plan, and the islands, that were `found`.

    `settings` are those with which it has the plan `before`; those of the plan's size are replaced,
    and of its devices, if they are named.

    >>> from jaxpipe.config import config_from
    >>> tree = {"run": {"folder": "run"}, "data": {"folder": "data"}, "model": {"preset": "tiny"}}
    >>> before = config_from({**tree, "plan": {"cluster": "laptop", "file": "plan.toml"}})
    >>> found = config_from({**tree, "plan": {"cluster": "laptop", "stages": 3, "replicas": 1}})
    >>> plan_settings(found, ["run.seed=1"], before=before, names_devices=False)[:3]
    ('run.seed=1', 'plan.file=', 'plan.schedule=1f1b')
    """
    plan, kept_fields = found.plan, _OF_FILE if before.plan.file is not None else ()
    outer = _outer_settings(found.outer, before=before.outer)
    changed = {*_SIZES, *(f"plan.{name}" for name in kept_fields), *outer}
    changed |= {"plan.devices"} if names_devices else set()
    # Later settings would win, but each attempt would lengthen the command line.
    kept = [each for each in settings if each.split("=")[0] not in changed]
    values = ((name, getattr(plan, name)) for name in kept_fields)
    of_file = [f"plan.{name}={'' if value is None else value}" for name, value in values]
    # Names of devices need no escapes in TOML: `jaxpipe.topo.names` has their rule.
    named = (f"plan.devices={json.dumps(list(plan.devices))}",) if names_devices else ()
    islands = (f"{name}={value}" for name, value in outer.items())
    return (*kept, *of_file, *_size_settings(plan), *named, *islands)


def _outer_settings(outer: OuterConfig, *, before: OuterConfig) -> dict[str, object]:
    """Return the fields of the section `[outer]` that follow the number of replicas."""
    return {
        f"outer.{name}": getattr(outer, name)
        for name in ("islands", "codec")
        if getattr(outer, name) != getattr(before, name)
    }


def _size_settings(plan: PlanConfig) -> tuple[str, ...]:
    lists = {"cut": plan.cut, "cuts": plan.cuts, "shares": plan.shares}
    given = tuple(f"plan.{name}={json.dumps(value)}" for name, value in lists.items() if value)
    if plan.cuts is not None:
        return given
    return (f"plan.stages={plan.stages}", f"plan.replicas={plan.replicas}", *given)


def _resized(outer: OuterConfig, *, num_replicas: int, per_island: int | None) -> OuterConfig:
    """Return the section `[outer]` with as many islands as replicas fill.

    A single island sends nothing, and needs no codec.
    """
    if per_island is None:
        return outer
    islands = fitting_islands(num_replicas, per_island=per_island)
    return replace(outer, islands=islands, codec=outer.codec if islands > 1 else CodecKind.NONE)


def within(
    config: Config,
    *,
    num_ranks: int,
    devices: Sequence[str] = (),
    all_reduce: AllReduceKind | None = None,
    running: Plan | None = None,
    moves: bool = True,
) -> Config | None:
    """Return the configuration with the best plan of at most `num_ranks` ranks; None if none fits.

    The best has the least sum of `run.change_every` steps and, if the state `moves` between ranks,
    the seconds of that. `devices` names the remaining devices, by default the first of those of
    the `running` plan, by default the configured one; `plan.devices` of the result are in the order
    of the new ranks. A running plan's `all_reduce` is kept: to choose again takes seconds with
    hundreds of ranks.
    """
    found = replanned(
        config,
        num_ranks=num_ranks,
        devices=devices,
        all_reduce=all_reduce,
        running=running,
        moves=moves,
    )
    return None if found is None else found[0]


def replanned(
    config: Config,
    *,
    num_ranks: int,
    devices: Sequence[str] = (),
    all_reduce: AllReduceKind | None = None,
    running: Plan | None = None,
    moves: bool = True,
) -> tuple[Config, Replanned] | None:
    """Return the configuration of `within`, and what its plan costs."""
    if num_ranks < 1:
        return None
    cluster = cluster_from(config)
    config = replace(
        config,
        plan=replace(config.plan, all_reduce=config.plan.all_reduce or all_reduce),
    )
    running = running or plan_from(config, cluster)
    if config.plan.file is not None:
        described = without_file(config.plan, running)
        if described is None:
            return None
        config = replace(config, plan=described)
    index = {device.name: number for number, device in enumerate(cluster.devices)}
    used = [device for row in running.placement for device in row]
    there = tuple(index[name] for name in devices) or tuple(used)
    profile, slow = _costs(config, cluster)
    remaining = Remaining(running=running, devices=there[:num_ranks], profile=profile, slow=slow)
    names = tuple(cluster.devices[device].name for device in there)

    outer = config.outer
    per_island = max(1, running.num_replicas // outer.islands) if outer.is_on else None

    def resized(plan: Plan) -> Config | None:
        sized = _sized(config, plan.pipelines, names, cluster)
        own = _resized(outer, num_replicas=plan.num_replicas, per_island=per_island)
        return None if sized is None else replace(sized, outer=own)

    def is_accepted(plan: Plan) -> bool:
        sized = resized(plan)
        return sized is not None and _is_accepted(sized, cluster, plan.all_reduce)

    best = choose(
        remaining,
        Future(
            cluster=cluster,
            each=bytes_each(
                config.model,
                shards_optimizer=config.optimizer.sharded,
                optimizer=config.optimizer.name,
            ),
            num_steps=config.run.change_every,
            # With a sharded optimizer no rank has all moments of its stage: all read a checkpoint.
            moves=moves and not config.optimizer.sharded,
            chunk_bytes=config.comm.chunk_bytes,
            per_island=per_island,
            outer_every=config.outer.every,
        ),
        candidates(remaining),
        is_accepted,
    )
    if best is None or (sized := resized(best.plan)) is None:
        return None
    return sized, best


def without_file(config: PlanConfig, plan: Plan) -> PlanConfig | None:
    """Return a section `plan` for plans like the one of its file, of any size.

    None if no section can describe them: with a schedule that is no generator's, ranks of several
    devices, or replicas with different microbatches. A warm-up is left to the schedule.
    """
    sizes = {pipeline.microbatch for pipeline in plan.pipelines}
    if not isinstance(plan.schedule, ScheduleKind) or plan.has_groups or len(sizes) > 1:
        return None
    return replace(
        config,
        file=None,
        schedule=plan.schedule,
        microbatch=sizes.pop(),
        chunks=plan.num_chunks,
        all_reduce=plan.all_reduce,
    )


def _sized(
    config: Config, pipelines: Sequence[Pipeline], names: Sequence[str], cluster: Cluster
) -> Config | None:
    """Return the configuration of some pipelines; devices without a rank come last.

    A partition that the configuration gives stays one: a file's `plan.cut` cannot be unset.
    """
    plan, first = config.plan, pipelines[0]
    cuts = {each.cut for each in pipelines}
    if plan.cut is not None and len(cuts) > 1:
        return None
    even = even_partition(num_layers=config.model.num_layers, num_stages=first.num_stages)
    has_own_cuts = plan.cuts is not None or len(cuts) > 1
    has_cut = not has_own_cuts and (plan.cut is not None or first.cut != even)
    is_equal = plan.shares is None and len({each.num_microbatches for each in pipelines}) == 1
    used = [cluster.devices[device].name for each in pipelines for device in each.devices]
    sized = replace(
        plan,
        stages=first.num_stages,
        replicas=len(pipelines),
        cut=first.cut if has_cut else None,
        cuts=tuple(each.cut for each in pipelines) if has_own_cuts else None,
        shares=None if is_equal else tuple(each.num_samples for each in pipelines),
        devices=(*used, *(name for name in names if name not in set(used))),
    )
    return replace(config, plan=sized)


def _costs(config: Config, cluster: Cluster) -> tuple[Profile, np.ndarray]:
    """Return what the model costs, and how much slower each device is than its profile.

    If the speed of a device is unknown, all are equal, and so slow that messages do not matter.
    """
    try:
        conditions = conditions_of(config, cluster)
    except UserError:
        profile = gpt_profile(config.model, remat=config.train.remat, flops_per_s=1.0)
        return profile, np.ones(len(cluster))
    return conditions.profile, conditions.slow


def _is_accepted(config: Config, cluster: Cluster, all_reduce: AllReduceKind) -> bool:
    plan = replace(config.plan, all_reduce=all_reduce)  # else it is chosen by simulation
    try:
        made = plan_from(replace(config, plan=plan), cluster)
        if config.outer.is_on:
            check_islands(made, num_islands=config.outer.islands)
    except UserError:
        return False
    return True
