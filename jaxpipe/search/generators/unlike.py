"""Plans whose replicas are unlike: each with its own number of stages, partition and share.

::

    devices by speed     fast fast fast | slow slow slow slow       sizes of replicas differ by one,
                                                                    or are those of the best plan
    partition            balanced for the devices of each replica
    shares               microbatches in proportion to the speed of the slowest stage
    then                 one microbatch less for the slowest replica, one more for another
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

import numpy as np

from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.search.balance import balanced_cut
from jaxpipe.search.best import Best
from jaxpipe.search.build_plan import first_fitting, with_suited_trees
from jaxpipe.search.task import Task

_FEW_REPLICAS = 8
"""As many are tried, however few the best even plan has."""


def unlike(task: Task, best: Best) -> Iterator[Plan]:
    """Yield plans with unlike replicas, if devices differ or some are left out of the best plan."""
    plan, fixed = best.even_plan, task.fixed
    if plan is None or not is_worth_trying(task, plan):
        return
    # Each replica has its own number of stages, on devices that are chosen by speed.
    if (fixed.depth, fixed.devices, fixed.replicas) == (None, None, None):
        yield from unlike_plans(task, plan)


def is_worth_trying(task: Task, plan: Plan) -> bool:
    """Return whether replicas may gain by being unlike: devices differ, or some are left out."""
    return plan.num_ranks < len(task.cluster) or len(set(task.slow.tolist())) > 1


def unlike_plans(task: Task, plan: Plan) -> Iterator[Plan]:
    """Yield plans with unlike replicas that fit the devices, starting from an even one."""
    slow = task.slow
    by_speed = np.argsort(slow, kind="stable").tolist()[: task.fixed.num_ranks]
    rows = [list(row) for row in plan.placement]
    most = max(_FEW_REPLICAS, 2 * plan.num_replicas)
    most = min(len(by_speed), task.batch // plan.microbatch, most)
    divided = [_chunks(by_speed, num) for num in range(1, most + 1)]
    near = sorted(by_speed, key=lambda i: (task.cluster.devices[i].host, i))
    for placement in (rows, *divided, *(_chunks(near, num) for num in range(1, most + 1))):
        if max(map(len, placement)) > task.num_layers:
            continue
        if (fitting := first_fitting(task, _plan_of(task, plan, placement))) is not None:
            yield fitting


def _plan_of(task: Task, plan: Plan, placement: Sequence[list[int]]) -> Plan:
    """Return the plan of rows of devices, each with its own partition and share."""
    cuts = [balanced_cut(task.profile, task.slow[row]) for row in placement]
    speeds = [1 / _slowest_s(task, row, cut) for row, cut in zip(placement, cuts, strict=True)]
    counts = proportional(task.batch // plan.microbatch, speeds)
    pipelines = tuple(
        Pipeline(devices=tuple(row), cut=cut, num_microbatches=count, microbatch=plan.microbatch)
        for row, cut, count in zip(placement, cuts, counts, strict=True)
    )
    return with_suited_trees(task, replace(plan, pipelines=pipelines, num_chunks=1))


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
