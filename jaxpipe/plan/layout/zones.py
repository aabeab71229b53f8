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

from jaxpipe.plan.layout.layout import Group, Run, Stage
from jaxpipe.plan.layout.layout_task import LayoutTask, Place

_MOST_ZONES = 5
"""So many zones have 325 orders of one or more of them; of more zones, only rotations are tried."""


def zone_orders(task: LayoutTask) -> list[tuple[str, ...]]:
    """Return the orders in which zones may be filled, some without all zones."""
    zones = task.zones
    if len(zones) > _MOST_ZONES:
        turned = [zones[n:] + zones[:n] for n in range(len(zones))]
        return turned + [each[::-1] for each in turned]
    return [order for num in range(len(zones), 0, -1) for order in permutations(zones, num)]


def placed(
    task: LayoutTask, kinds: Sequence[Group], num_replicas: int, order: Sequence[str]
) -> Iterator[tuple[Stage, ...]]:
    """Yield the stages on the zones in an order, by stage and by replica, where they suffice."""
    fillings = [_by_stage] if len(order) == 1 or len(kinds) == 1 else [_by_stage, _by_replica]
    for filling in fillings:
        stages = filling(task, kinds, num_replicas, order)
        if stages is not None:
            yield stages


def uses(stages: Sequence[Stage], zone: str) -> bool:
    """Return whether a group is in a zone; the last zone of an order may be more than needed."""
    return any(run.group.zone == zone for stage in stages for run in stage)


def _by_stage(
    task: LayoutTask, kinds: Sequence[Group], num_replicas: int, order: Sequence[str]
) -> tuple[Stage, ...] | None:
    left = dict(task.gpus)
    stages = []
    for kind in kinds:
        runs, missing = [], num_replicas
        for zone in order:
            place = (kind.gpu, zone)
            count = min(missing, left.get(place, 0) // kind.tensor)
            if count:
                runs.append(Run(kind._replace(zone=zone), count))
                left[place] -= count * kind.tensor
                missing -= count
        if missing:
            return None
        stages.append(tuple(runs))
    return tuple(stages)


def _by_replica(
    task: LayoutTask, kinds: Sequence[Group], num_replicas: int, order: Sequence[str]
) -> tuple[Stage, ...] | None:
    missing = num_replicas
    counts: list[tuple[str, int]] = []
    for zone in order:
        count = min(missing, _whole_replicas(task, kinds, zone))
        if count:
            counts.append((zone, count))
            missing -= count
    if missing:
        return None
    return tuple(
        tuple(Run(kind._replace(zone=zone), count) for zone, count in counts) for kind in kinds
    )


def _whole_replicas(task: LayoutTask, kinds: Sequence[Group], zone: str) -> int:
    """Return how many replicas, with all of their stages, a zone has GPUs for."""
    needed: dict[Place, int] = {}
    for kind in kinds:
        needed[kind.gpu, zone] = needed.get((kind.gpu, zone), 0) + kind.tensor
    return min(task.gpus.get(place, 0) // number for place, number in needed.items())
