"""Plans whose replicas are unlike: each with its own number of stages, partition and share.

::

    devices by speed     fast fast fast | slow slow slow slow       sizes of replicas differ by one,
                                                                    or are those of the best plan
    partition            balanced for the devices of each replica, or that of the best plan for all
    shares               microbatches in proportion to the speed of the slowest stage
    then                 one microbatch less for the slowest replica, one more for another
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import product

import numpy as np

from jaxpipe.plan.partition import Cut
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.search.balance import balanced_cut
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import (
    first_fitting,
    is_possible,
    lacking_bytes,
    with_suited_trees,
)
from jaxpipe.search.task import Task

_FEW_REPLICAS = 8
"""As many are tried, however few the best even plan has."""
_SHARE = 4
"""Microbatches of a replica, in the mean, that make shares fine enough."""


def unlike(task: Task, best: Best) -> Iterator[Plan]:
    """Yield plans with unlike replicas, if devices differ or some are left out of the best plan.

    They keep what is set: shares of the batch may differ where numbers of stages may not.
    """
    plan, fixed = best.even_plan, task.fixed
    if plan is None or not is_worth_trying(task, plan):
        return
    # Its replicas have no chunks, and each the warm-up of its own length.
    if fixed.num_chunks == 1 and fixed.warmup is None:
        yield from unlike_plans(task, plan)


def is_worth_trying(task: Task, plan: Plan) -> bool:
    """Return whether replicas may gain by being unlike: devices differ, or some are left out."""
    return plan.num_ranks < len(task.cluster) or len(set(task.slow.tolist())) > 1


def unlike_plans(task: Task, plan: Plan) -> Iterator[Plan]:
    """Yield plans with unlike replicas that fit the devices, starting from an even one."""
    for placement in _placements(task, plan):
        sizes = _microbatches(task, plan, num_replicas=len(placement))
        for cuts, microbatch in product(_cuts(task, plan, placement), sizes):
            changed = _plan_of(task, plan, placement, cuts, microbatch=microbatch)
            if (fitting := first_fitting(task, changed)) is not None:
                yield fitting


def _placements(task: Task, plan: Plan) -> Iterator[list[list[int]]]:
    """Yield rows of devices: those of the plan, and, where they are free, by speed and by host."""
    fixed = task.fixed
    rows = [list(row) for row in plan.placement]
    by_speed = np.argsort(task.slow, kind="stable").tolist()[: fixed.num_ranks]
    near = sorted(by_speed, key=lambda i: (task.cluster.devices[i].host, i))
    most = max(_FEW_REPLICAS, 2 * plan.num_replicas)
    most = min(len(by_speed), task.batch // plan.microbatch, most)
    numbers = range(1, most + 1) if fixed.devices is None else ()
    divided = (_chunks(devices, num) for devices in (by_speed, near) for num in numbers)
    for placement in (rows, *divided):
        depths = set(map(len, placement))
        has_shape = fixed.replicas in (None, len(placement)) and (
            fixed.depth is None or depths == {fixed.depth}
        )
        if has_shape and max(depths) <= task.num_layers:
            yield placement


def _cuts(task: Task, plan: Plan, placement: Sequence[list[int]]) -> Iterator[list[Cut]]:
    """Yield the cut of each replica: balanced for its devices, and that of the plan for all.

    Islands of an outer loop have equal cuts; so has every replica whose cut is set.
    """
    if task.fixed.cut is None:
        yield [balanced_cut(task.profile, task.slow[row]) for row in placement]
    if all(len(row) == len(plan.cut) for row in placement):
        yield [plan.cut] * len(placement)


def _microbatches(task: Task, plan: Plan, *, num_replicas: int) -> Iterator[int]:
    """Yield the microbatch of a plan, and a smaller one if its shares are coarse."""
    size = plan.microbatch
    yield size
    if task.fixed.microbatch is not None:
        return
    while size % 2 == 0 and task.batch // size < _SHARE * num_replicas:
        size //= 2
    if size < plan.microbatch:
        yield size


def _plan_of(
    task: Task,
    plan: Plan,
    placement: Sequence[list[int]],
    cuts: Sequence[Cut],
    *,
    microbatch: int,
) -> Plan:
    """Return the plan of rows of devices, each with its own partition and share."""
    speeds = [1 / _slowest_s(task, row, cut) for row, cut in zip(placement, cuts, strict=True)]
    counts = proportional(task.batch // microbatch, speeds)
    pipelines = tuple(
        Pipeline(devices=tuple(row), cut=cut, num_microbatches=count, microbatch=microbatch)
        for row, cut, count in zip(placement, cuts, counts, strict=True)
    )
    return with_suited_trees(task, replace(plan, pipelines=pipelines, num_chunks=1))


def shared_by_speed(task: Task, plan: Plan) -> Iterator[Plan]:
    """Yield an even plan with shares in proportion to the speeds of its replicas, where it fits."""
    rows = [(list(pipeline.devices), pipeline.cut) for pipeline in plan.pipelines]
    speeds = [1 / _slowest_s(task, row, cut) for row, cut in rows]
    for size in _microbatches(task, plan, num_replicas=len(rows)):
        counts = proportional(task.batch // size, speeds)
        pipelines = tuple(
            replace(pipeline, microbatch=size, num_microbatches=count)
            for pipeline, count in zip(plan.pipelines, counts, strict=True)
        )
        changed = with_suited_trees(task, replace(plan, pipelines=pipelines))
        if is_possible(changed) and not lacking_bytes(task, changed):
            yield changed


def proportional(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide a total so that the most for its weight is least, with at least one for each.

    >>> proportional(8, [3.0, 1.0]), proportional(7, [100.0, 1.0, 1.0])
    ((6, 2), (5, 1, 1))
    """
    counts = [1] * len(weights)
    after = [(2 / weight, n) for n, weight in enumerate(weights)]
    heapify(after)
    for _ in range(total - len(weights)):
        # To the one that has the least for its weight with one more.
        _, n = after[0]
        counts[n] += 1
        heapreplace(after, ((counts[n] + 1) / weights[n], n))
    return tuple(counts)


def _slowest_s(task: Task, row: list[int], cut: tuple[int, ...]) -> float:
    parts = [task.profile.stage(cut, stage) for stage in range(len(cut))]
    seconds = (part.forward_s + part.backward_s for part in parts)
    return max(each * float(task.slow[device]) for each, device in zip(seconds, row, strict=True))


def _chunks(devices: list[int], num: int) -> list[list[int]]:
    """Return the devices in order, in as many rows whose sizes differ by one at most."""
    return [list(map(int, row)) for row in np.array_split(devices, num)]


def moved_microbatches(task: Task, plan: Plan) -> Iterator[Plan]:
    """Yield plans in which the slowest replica gives a microbatch to one of the others."""
    own_s = [
        pipeline.num_samples * _slowest_s(task, list(pipeline.devices), pipeline.cut)
        for pipeline in plan.pipelines
    ]
    giver = int(np.argmax(own_s))
    if plan.pipelines[giver].num_microbatches == 1:
        return
    for taker in range(plan.num_replicas):
        if taker != giver:
            pipelines = list(plan.pipelines)
            for replica, change in ((giver, -1), (taker, 1)):
                count = pipelines[replica].num_microbatches + change
                pipelines[replica] = replace(pipelines[replica], num_microbatches=count)
            yield replace(plan, pipelines=tuple(pipelines))
