"""Plans for islands of an outer loop: one plan is searched for an island, and each gets a copy.

::

    west   0 1 2 3        two islands   0 1 2 3 | 4 5 6 7      inside: the plan that is fastest
    east   4 5 6 7        four          0 1 | 2 3 | 4 5 | 6 7  between: an outer step at times

An island lies inside of a region, so that its messages take the fast links. All islands have the
same number of devices and the same stages, since they exchange what each stage has learned. Where
devices differ in speed, so do the islands' shares of the batch: all end their steps together.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from jaxpipe.config import Config
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.query import Query, executable, generators_of
from jaxpipe.schedule import Remat
from jaxpipe.search import Effort, Objective, Task, search, with_suited_trees
from jaxpipe.search.generators.schedules import made_to_measure
from jaxpipe.search.generators.unlike import shared_by_speed
from jaxpipe.simulate import Conditions, step_bound_s, step_objective
from jaxpipe.topo import Cluster, subcluster

_PARTS = (1, 2, 4)
"""Islands that a region is divided into, of as many devices each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandPlan:
    """A plan of `islands` equal islands, its conditions, and how many plans were valued."""

    islands: int
    plan: Plan
    conditions: Conditions
    num_valued: int


def island_groups(cluster: Cluster, *, most: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the devices of 2 to `most` islands, of equal size and each inside of one region.

    >>> from jaxpipe import topo
    >>> list(island_groups(topo.load("two-region"), most=4))
    [((0, 1), (2, 3)), ((0,), (1,), (2,), (3,))]
    """
    members = [
        [number for number, device in enumerate(cluster.devices) if device.region == region]
        for region in cluster.regions
    ]
    smallest = min(len(devices) for devices in members)
    for parts in _PARTS:
        size = smallest // parts
        if size and 2 <= parts * len(members) <= most:
            yield tuple(
                tuple(devices[part * size : (part + 1) * size])
                for devices in members
                for part in range(parts)
            )


def island_plan(
    config: Config,
    cluster: Cluster,
    groups: tuple[tuple[int, ...], ...],
    options: SearchOptions,
    *,
    seconds: float,
    observe: Callable[[int], None] = lambda _: None,
) -> IslandPlan:
    """Return the best plan found for the slowest of some groups, with a copy on each of them.

    Raises:
        ConfigError: the speed of a device is unknown.
        PlanError: the islands do not divide the batch or what is set of the plan, or nothing fits.
    """
    query = Query(config=config, cluster=cluster)
    inside = _inside(config, cluster, groups)
    refusal: PlanError | None = None
    for remat in query.remats:
        task, conditions = inside.task(remat, max_tensor=options.max_tensor)
        try:
            result = search(
                task,
                _of_equal_stages(executable(inside.config, step_objective(conditions))),
                bound=partial(step_bound_s, conditions=conditions),
                # A custom schedule lists the ranks of one island, not those of all islands.
                generators=tuple(
                    row for row in generators_of(inside) if row[0] is not made_to_measure
                ),
                effort=Effort(seconds=seconds, seed=options.seed),
                clock=time.process_time,
                observe=observe,
            )
        except PlanError as error:
            refusal = refusal or error
            continue
        task, conditions = query.task(remat, max_tensor=options.max_tensor)
        plan = _copied(task, result.plan, groups)
        return IslandPlan(
            islands=len(groups),
            plan=replace(_of_least_step(task, plan, conditions), remat=remat),
            conditions=conditions,
            num_valued=result.num_valued,
        )
    assert refusal is not None, query.remats
    raise refusal


def _of_equal_stages(objective: Objective) -> Objective:
    return lambda plan: objective(plan) if plan.has_equal_cuts else inf


def _inside(config: Config, cluster: Cluster, groups: tuple[tuple[int, ...], ...]) -> Query:
    """Return the query of one island: the slowest one, with its part of the batch."""
    islands, section = len(groups), config.plan
    for name, value in (("train.batch", config.train.batch), ("plan.replicas", section.replicas)):
        if value is not None and value % islands:
            raise PlanError(f"`{name}` ({value}) must be a multiple of the {islands} islands")
    for name in ("devices", "schedule_file"):
        if getattr(section, name):
            raise PlanError(f"`plan.{name}` describes one plan, of which islands have no copy")
    if section.has_unlike_replicas:
        raise PlanError("`plan` describes unlike replicas, and islands exchange equal stages")
    task, _ = Query(config=config, cluster=cluster).task(config.train.remat or Remat.NONE)
    slowest = max(groups, key=lambda devices: float(np.sum(task.slow[list(devices)])))
    replicas = None if section.replicas is None else section.replicas // islands
    return Query(
        config=replace(
            config,
            plan=replace(section, replicas=replicas),
            train=replace(config.train, batch=config.train.batch // islands),
        ),
        cluster=subcluster(cluster, slowest),
    )


def _of_least_step(task: Task, plan: Plan, conditions: Conditions) -> Plan:
    """Return the plan, or one with shares by speed whose step takes less time."""
    if len(set(task.slow.tolist())) == 1:
        return plan
    return min((plan, *shared_by_speed(task, plan)), key=step_objective(conditions))


def _copied(task: Task, plan: Plan, groups: tuple[tuple[int, ...], ...]) -> Plan:
    """Return the plan of one island on each of the groups, by their devices' places in them."""
    pipelines = tuple(
        replace(
            pipeline,
            devices=tuple(devices[number] for number in pipeline.devices),
            peers=tuple(tuple(devices[number] for number in peers) for peers in pipeline.peers),
        )
        for devices in groups
        for pipeline in plan.pipelines
    )
    return with_suited_trees(task, replace(plan, pipelines=pipelines))
