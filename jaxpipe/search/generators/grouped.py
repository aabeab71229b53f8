"""Plans with tensor parallelism: the search on a smaller cluster, whose devices are groups.

::

    hosts of 4 devices, groups of 2      a:0 a:1 a:2 a:3 b:0 b:1 ...  ──►  a:0 a:2 b:0 ...
                                         search on these, each as fast and as large as its group
    the plan that is found               each device with the rest of its group

The devices left over in a host stay alone. How much faster than a device a group is follows from a
mean layer with its all-reduces; the plans that are found are simulated with those of their stages.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from jaxpipe.errors import PlanError
from jaxpipe.plan.cost.group_cost import SharedStage, shared_part
from jaxpipe.plan.group import Sharing
from jaxpipe.plan.plan import Plan
from jaxpipe.search.best import Best
from jaxpipe.search.generators.even import even_plans
from jaxpipe.search.task import Task
from jaxpipe.topo import subcluster

_FRACTION = 0.2
"""The fraction of the seconds for the closed forms of all degrees."""


def grouped(task: Task, best: Best) -> Iterator[Plan]:
    """Yield the best even plans whose ranks share stages, for each tensor degree of the task."""
    if task.fixed.devices is not None:
        return
    _, *sizes = degrees(task, most=task.max_tensor, num_heads=task.num_heads)
    begin = best.spent()
    for number, degree in enumerate(sizes, start=1):
        groups = GroupedTask(task, degree=degree, recomputes=task.recomputes)
        until = begin + _FRACTION * number / len(sizes)
        with suppress(PlanError):  # no shape may fit the groups
            yield from map(groups.plan, even_plans(groups.task, best, until=until))


class GroupedTask:
    """A task on the groups of `degree` devices of each host, and the way back to its devices."""

    def __init__(self, task: Task, *, degree: int, recomputes: bool) -> None:
        self.degree = degree
        self._task = task
        self._recomputes = recomputes
        self._groups = tuple(_groups(task, degree))

    @cached_property
    def task(self) -> Task:
        """The task whose devices are the groups."""
        task = self._task
        smaller = subcluster(task.cluster, [group[0] for group in self._groups])
        devices = []
        for group, device in zip(self._groups, smaller.devices, strict=True):
            slow = max(float(task.slow[each]) for each in group)
            memory = device.memory_bytes
            devices.append(
                replace(
                    device,
                    effective_flops_per_s=task.profile.flops_per_s / (slow * self._ratio(group)),
                    memory_bytes=None if memory is None else memory * len(group),
                )
            )
        return replace(task, cluster=replace(smaller, devices=tuple(devices)))

    def plan(self, found: Plan) -> Plan:
        """Return a plan of the smaller task on all devices of its groups."""
        return found.on_groups([self._groups[n] for n in row] for row in found.placement)

    def _ratio(self, group: tuple[int, ...]) -> float:
        """Return the seconds of a mean layer on a group, over those on its slowest device."""
        task, profile = self._task, self._task.profile.scaled(microbatch=1)
        slow = max(float(task.slow[each]) for each in group)
        layer = profile.layers[len(profile.layers) // 2].scaled(slow)
        stage = SharedStage(
            group=group,
            num_layers=1,
            activation_bytes=profile.activation_bytes,
            gradient_bytes=0.0,
            recomputes=self._recomputes,
        )
        shared = shared_part(layer, stage, Sharing.TENSOR, task.cluster)
        return (shared.forward_s + shared.backward_s) / (layer.forward_s + layer.backward_s)


def degrees(task: Task, *, most: int, num_heads: int) -> tuple[int, ...]:
    """Return the powers of two that some host has devices for, and that divide the heads."""
    hosts = task.cluster.host_of
    largest = max(hosts.count(host) for host in set(hosts))
    powers = (2**n for n in range(most.bit_length()))
    return tuple(n for n in powers if n <= min(most, largest) and num_heads % n == 0)


def _groups(task: Task, degree: int) -> Iterator[tuple[int, ...]]:
    """Yield groups of the devices of each host, in their order; the rest are alone."""
    members: dict[int, list[int]] = {}
    for device, host in enumerate(task.cluster.host_of):
        members.setdefault(host, []).append(device)
    for devices in members.values():
        whole = len(devices) // degree * degree
        yield from (tuple(devices[n : n + degree]) for n in range(0, whole, degree))
        yield from ((device,) for device in devices[whole:])
