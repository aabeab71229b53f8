"""Zones for the groups of a layout: which replicas of which stage are where.

::

    by stage      stage 0  aaaabb      few pairs of neighbours cross zones: gradients
                  stage 1  bbcccc
    by replica    stage 0  aaabbb      no message between stages crosses zones
                  stage 1  aaabbb

In both, zones are filled in one order, and groups of a zone stand together.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import TypeAlias

from jaxpipe.search.layout.layout import Group, Run, Stage
from jaxpipe.search.layout.layout_task import LayoutTask, Place

Stages: TypeAlias = tuple[Stage, ...]

_MOST_ZONES = 5
"""This number of zones has 325 orders of one or more; of more zones, only rotations are tried."""


def zone_orders(task: LayoutTask) -> list[tuple[str, ...]]:
    """Return the orders in which zones may be filled, some without all zones."""
    zones = task.zones
    if len(zones) > _MOST_ZONES:
        turned = [zones[n:] + zones[:n] for n in range(len(zones))]
        return turned + [each[::-1] for each in turned]
    return [order for num in range(len(zones), 0, -1) for order in permutations(zones, num)]


def placed(task: LayoutTask, stages: Sequence[Stage], order: Sequence[str]) -> Iterator[Stages]:
    """Yield the stages on the zones in an order, by stage and by replica, where they suffice."""
    by_stage = _by_stage(task, stages, order)
    if by_stage is not None:
        yield by_stage
    if len(order) > 1 and len(stages) > 1 and all(len(stage) == 1 for stage in stages):
        by_replica = _by_replica(task, [stage[0] for stage in stages], order)
        if by_replica is not None:
            yield by_replica


def uses(stages: Sequence[Stage], zone: str) -> bool:
    """Return whether a group is in a zone; the last zone of an order may be more than needed."""
    return any(run.group.zone == zone for stage in stages for run in stage)


def _by_stage(task: LayoutTask, stages: Sequence[Stage], order: Sequence[str]) -> Stages | None:
    left = dict(task.gpus)
    found = []
    for stage in stages:
        runs = []
        for group, replicas in stage:
            missing = replicas
            for zone in order:
                place = (group.gpu, zone)
                count = min(missing, left.get(place, 0) // group.tensor)
                if count:
                    runs.append(Run(group._replace(zone=zone), count))
                    left[place] -= count * group.tensor
                    missing -= count
            if missing:
                return None
        found.append(tuple(runs))
    return tuple(found)


def _by_replica(task: LayoutTask, runs: Sequence[Run], order: Sequence[str]) -> Stages | None:
    groups = [run.group for run in runs]
    missing = runs[0].replicas
    counts: list[tuple[str, int]] = []
    for zone in order:
        count = min(missing, _whole_replicas(task, groups, zone))
        if count:
            counts.append((zone, count))
            missing -= count
    if missing:
        return None
    return tuple(
        tuple(Run(group._replace(zone=zone), count) for zone, count in counts) for group in groups
    )


def _whole_replicas(task: LayoutTask, groups: Sequence[Group], zone: str) -> int:
    """Return how many replicas, with all of their stages, a zone has GPUs for."""
    needed: dict[Place, int] = {}
    for group in groups:
        needed[group.gpu, zone] = needed.get((group.gpu, zone), 0) + group.tensor
    return min(task.gpus.get(place, 0) // number for place, number in needed.items())
