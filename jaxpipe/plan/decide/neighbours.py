"""Neighbours of a plan: other devices, partition, schedule, microbatch or all-reduce."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan.decide.build_plan import build
from jaxpipe.plan.decide.task import Task
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind

_DEEPEST_WARMUP = 4
_SCHEDULES = (
    ScheduleKind.GPIPE,
    ScheduleKind.ONE_F_ONE_B,
    ScheduleKind.EAGER_ONE_F_ONE_B,
    ScheduleKind.EAGER_ONE_F_ONE_B,
)
_ALL_REDUCES = (
    AllReduceKind.TREE,
    AllReduceKind.HIERARCHICAL,
    AllReduceKind.SHARDED,
    AllReduceKind.RING,
    AllReduceKind.HALVING,
)


def neighbour(task: Task, plan: Plan, *, random: np.random.Generator) -> Plan:
    """Return the plan with one random change, and new sync trees."""
    change = _CHANGES[random.integers(len(_CHANGES))]
    return change(task, plan, random)


def _swap_devices(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Swap two devices, one of which may be unused so far."""
    cells = np.array(plan.placement).ravel()
    outside = np.setdiff1d(np.arange(len(task.cluster)), cells)
    devices = np.concatenate((cells, outside))
    first, second = random.integers(len(cells)), random.integers(len(devices))
    devices[[first, second]] = devices[[second, first]]
    placement = devices[: len(cells)].reshape(plan.num_replicas, plan.num_stages)
    return _rebuilt(task, plan, placement, cut=plan.cut)


def _move_layer(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Move a layer to another stage; the stages between shift by one layer."""
    source, destination = random.integers(plan.num_stages, size=2)
    cut = list(plan.cut)
    # A stage keeps a layer. An unchanged plan is not evaluated.
    if cut[source] > 1:
        cut[source] -= 1
        cut[destination] += 1
    return _rebuilt(task, plan, np.array(plan.placement), cut=tuple(cut))


def _rebuilt(task: Task, plan: Plan, placement: np.ndarray, *, cut: Cut) -> Plan:
    """Return the plan on other devices or with another partition, and new sync trees."""
    return build(
        task,
        placement,
        microbatch=plan.microbatch,
        schedule=plan.schedule,
        cut=cut,
        warmup=plan.warmup,
        all_reduce=plan.all_reduce,
    )


def other_all_reduces(task: Task, plan: Plan) -> Iterator[Plan]:
    """Yield the plan with each other all-reduce worth trying, and sync trees for it.

    Not with a central server or a chain: a sync tree takes either shape if that is best.
    """
    reduces = plan.num_replicas > 1 or (plan.tied and plan.num_stages > 1)
    for kind in _ALL_REDUCES if reduces else ():
        if kind is not plan.all_reduce:
            yield with_all_reduce(task, plan, kind)


def with_all_reduce(task: Task, plan: Plan, kind: AllReduceKind) -> Plan:
    """Return the plan with another all-reduce, and sync trees for it."""
    placement = np.array(plan.placement)
    return _rebuilt(task, replace(plan, all_reduce=kind), placement, cut=plan.cut)


def deepened(plan: Plan) -> Iterator[Plan]:
    """Yield the plan with 1F1B of deeper warm-ups: 1, 2, ... forwards per following stage.

    Depth hides the latency of messages, and takes memory.
    """
    for deeper in range(1, _DEEPEST_WARMUP + 1):
        warmup = tuple(
            min(plan.num_microbatches, deeper * (plan.num_stages - stage - 1) + 1)
            for stage in range(plan.num_stages)
        )
        yield replace(plan, schedule=ScheduleKind.EAGER_ONE_F_ONE_B).of_each(warmup=warmup)


def _change_schedule(_task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Change the schedule."""
    kind = _SCHEDULES[random.integers(len(_SCHEDULES))]
    if kind is not ScheduleKind.EAGER_ONE_F_ONE_B:
        return replace(plan, schedule=kind).of_each(warmup=None)
    return list(deepened(plan))[random.integers(_DEEPEST_WARMUP)]


def _change_microbatch(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Double or halve the microbatch, if that divides the batch."""
    each = task.batch // plan.num_replicas
    size = 2 * plan.microbatch if random.integers(2) else plan.microbatch // 2
    if size < 1 or each % size:
        return plan
    # Larger microbatches are fewer: no warm-up may be deeper than their number.
    warmup = plan.warmup and tuple(min(each // size, depth) for depth in plan.warmup)
    return plan.of_each(microbatch=size, num_microbatches=each // size, warmup=warmup)


def _change_all_reduce(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Change the all-reduce."""
    return with_all_reduce(task, plan, _ALL_REDUCES[random.integers(len(_ALL_REDUCES))])


_CHANGES: tuple[Callable[[Task, Plan, np.random.Generator], Plan], ...] = (
    _swap_devices,  # twice: there are far more placements than other choices
    _swap_devices,
    _move_layer,
    _change_schedule,
    _change_microbatch,
    _change_all_reduce,
)
