"""Small changes of a plan: other devices, another cut, another schedule."""

from collections.abc import Callable

import numpy as np

from jaxpipe.plan.decide.build import build
from jaxpipe.plan.decide.task import Task
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind

_DEEPEST_WARMUP = 4
_SCHEDULES = (
    ScheduleKind.GPIPE,
    ScheduleKind.ONE_F_ONE_B,
    ScheduleKind.EAGER_ONE_F_ONE_B,
    ScheduleKind.EAGER_ONE_F_ONE_B,
)


def neighbour(task: Task, plan: Plan, *, random: np.random.Generator) -> Plan:
    """Return the plan with one random change; sync trees are chosen anew."""
    change = _CHANGES[random.integers(len(_CHANGES))]
    return change(task, plan, random)


def _swap_devices(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Swap two devices, one of which may be left out so far."""
    cells = np.array(plan.placement).ravel()
    outside = np.setdiff1d(np.arange(len(task.cluster)), cells)
    devices = np.concatenate((cells, outside))
    first, second = random.integers(len(cells)), random.integers(len(devices))
    devices[[first, second]] = devices[[second, first]]
    placement = devices[: len(cells)].reshape(plan.num_replicas, plan.num_stages)
    return build(
        task,
        placement,
        microbatch=plan.microbatch,
        schedule=plan.schedule,
        cut=plan.cut,
        warmup=plan.warmup,
    )


def _move_layer(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Give a layer to another stage; stages between pass one on."""
    source, destination = random.integers(plan.num_stages, size=2)
    cut = list(plan.cut)
    if cut[source] > 1:
        cut[source] -= 1
        cut[destination] += 1
    return build(
        task,
        np.array(plan.placement),
        microbatch=plan.microbatch,
        schedule=plan.schedule,
        cut=tuple(cut),
        warmup=plan.warmup,
    )


def _change_schedule(task: Task, plan: Plan, random: np.random.Generator) -> Plan:
    """Take another schedule, or 1F1B with so many more forwards ahead for each stage behind."""
    kind = _SCHEDULES[random.integers(len(_SCHEDULES))]
    warmup = None
    if kind is ScheduleKind.EAGER_ONE_F_ONE_B:
        deeper = int(random.integers(1, _DEEPEST_WARMUP + 1))
        warmup = tuple(
            min(plan.num_microbatches, deeper * (plan.num_stages - stage - 1) + 1)
            for stage in range(plan.num_stages)
        )
    return build(
        task,
        np.array(plan.placement),
        microbatch=plan.microbatch,
        schedule=kind,
        cut=plan.cut,
        warmup=warmup,
    )


_CHANGES: tuple[Callable[[Task, Plan, np.random.Generator], Plan], ...] = (
    _swap_devices,
    _swap_devices,
    _move_layer,
    _change_schedule,
)
