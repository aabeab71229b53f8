"""Layers to stages, and stages to submeshes: the least time of a pipeline's step.

With t_i the seconds of stage i for one of B microbatches, a step takes::

    sum of t_i + (B - 1) max of t_i

For each bound on the largest t, in rising order, dynamic programming finds the least sum::

    F(s, k, d) = min over layers k .. l and submeshes from device d to e of t + F(s - 1, l, e)

where s stages are left for layers from k on devices from d. The first of s stages keeps s
microbatches for their backwards, and its devices must have memory for them (1F1B). Bounds are
tried until (B - 1) times the bound, and the least sum of all, exceed the best.

Submeshes are runs of devices in the order of the cluster, so that they may be uneven and their
devices different; a stage's cost is a function of them.

Source: Zheng et al., "Alpa", OSDI 2022, section 5.2, equations 2 to 5; here devices keep their
order, where the paper counts them, which is what lets them differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What a stage takes on a submesh: seconds of one microbatch, forward and backward.

    Each of its devices holds `fixed_bytes`, and `live_bytes` for each microbatch that it keeps.
    """

    seconds: float
    fixed_bytes: float = 0.0
    live_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers, and the consecutive devices that hold them together."""

    layers: range
    devices: range
    cost: StageCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The stages of a pipeline, and the seconds of its step."""

    stages: tuple[Stage, ...]
    seconds: float


CostOf = Callable[[range, range], StageCost | None]
"""What some layers take on some devices; None where they cannot run there."""


def submeshes(hosts: Sequence[int], *, every_size: bool = False) -> tuple[range, ...]:
    """Return the submeshes of hosts with so many devices each, in order.

    Inside a host they have 1, 2, 4, ... devices and begin at a multiple of that (with `every_size`
    any run of devices); beyond one they are whole hosts.

    >>> submeshes([2, 2])
    (range(0, 1), range(0, 2), range(0, 4), range(1, 2), range(2, 3), range(2, 4), range(3, 4))
    """
    ends = np.cumsum([0, *hosts]).tolist()
    found = {
        range(ends[first], ends[last])
        for first in range(len(hosts))
        for last in range(first + 1, len(hosts) + 1)
    }
    for host, size in enumerate(hosts):
        for first in range(size):
            for last in range(first + 1, size + 1):
                length = last - first
                aligned = length & (length - 1) == 0 and first % length == 0
                if every_size or aligned:
                    found.add(range(ends[host] + first, ends[host] + last))
    return tuple(sorted(found, key=lambda devices: (devices.start, devices.stop)))


def assign_stages(
    cost_of: CostOf,
    *,
    num_layers: int,
    meshes: Sequence[range],
    memory_bytes: Sequence[float],
    num_microbatches: int,
) -> Assignment:
    """Return the stages whose step takes least; together they use all devices.

    `memory_bytes` are those of each device. Cost: layers ** 2 calls of `cost_of` for each submesh;
    then, for each bound that is tried, O(stages * submeshes * layers ** 2).

    >>> cost = lambda layers, devices: StageCost(seconds=len(layers) / len(devices))
    >>> found = assign_stages(cost, num_layers=4, meshes=submeshes([2]), memory_bytes=[1, 1],
    ...                       num_microbatches=3)
    >>> [(stage.layers, stage.devices) for stage in found.stages], found.seconds
    ([(range(0, 4), range(0, 2))], 6.0)

    Raises:
        PlanError: nothing fits the devices.
    """
    table = _Table.of(cost_of, num_layers, meshes, memory_bytes)
    waits = num_microbatches - 1
    best: Assignment | None = None
    least_s = _least_sum(table, np.inf, waits + 1)
    for bound_s in np.unique(table.seconds[np.isfinite(table.seconds)]):
        if best is not None and least_s + waits * bound_s >= best.seconds:
            break
        stages = _cheapest(table, float(bound_s), waits + 1)
        if stages is not None:
            each_s = [stage.cost.seconds for stage in stages]
            seconds = sum(each_s) + waits * max(each_s)
            if best is None or seconds < best.seconds:
                best = Assignment(stages=stages, seconds=seconds)
    if best is None:
        raise PlanError(
            f"each stage fits its devices: no stages of {num_layers} layers do, on "
            f"{len(memory_bytes)} devices with `memory_bytes` from {min(memory_bytes):.4g}; take "
            "more devices, other submeshes or smaller microbatches"
        )
    return best


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """All costs, as `[submesh, first layer, end layer]`; where nothing runs, infinite seconds.

    `left` is the memory beside what is fixed, `live` what each microbatch that is kept takes.
    """

    meshes: tuple[range, ...]
    costs: dict[tuple[int, int, int], StageCost]
    seconds: np.ndarray
    left: np.ndarray
    live: np.ndarray
    num_devices: int

    @classmethod
    def of(
        cls,
        cost_of: CostOf,
        num_layers: int,
        meshes: Sequence[range],
        memory_bytes: Sequence[float],
    ) -> "_Table":
        """Return the table of a function."""
        shape = (len(meshes), num_layers + 1, num_layers + 1)
        seconds, left, live = np.full(shape, np.inf), np.zeros(shape), np.zeros(shape)
        costs = {}
        for number, mesh in enumerate(meshes):
            room = min(memory_bytes[device] for device in mesh)
            for first in range(num_layers):
                for end in range(first + 1, num_layers + 1):
                    cost = cost_of(range(first, end), mesh)
                    if cost is not None and cost.fixed_bytes <= room:
                        costs[number, first, end] = cost
                        seconds[number, first, end] = cost.seconds
                        left[number, first, end] = room - cost.fixed_bytes
                        live[number, first, end] = cost.live_bytes
        return cls(
            meshes=tuple(meshes),
            costs=costs,
            seconds=seconds,
            left=left,
            live=live,
            num_devices=len(memory_bytes),
        )


def _sums(table: _Table, bound_s: float, num_microbatches: int) -> list[np.ndarray]:
    """Return F[s][first layer, first device] for each number of stages s."""
    num_layers = table.seconds.shape[1] - 1
    nothing = np.full((num_layers + 1, table.num_devices + 1), np.inf)
    nothing[num_layers, table.num_devices] = 0.0
    sums = [nothing]
    for left in range(1, min(num_layers, table.num_devices) + 1):
        own = _allowed(table, bound_s, min(left, num_microbatches))
        here = np.full_like(nothing, np.inf)
        for number, mesh in enumerate(table.meshes):
            through = (own[number] + sums[-1][None, :, mesh.stop]).min(axis=1)
            here[:, mesh.start] = np.minimum(here[:, mesh.start], through)
        sums.append(here)
    return sums


def _allowed(table: _Table, bound_s: float, live: int) -> np.ndarray:
    """Return the seconds of stages that are fast enough and can keep so many microbatches."""
    return np.where(
        (table.seconds <= bound_s) & (table.left >= live * table.live), table.seconds, np.inf
    )


def _least_sum(table: _Table, bound_s: float, num_microbatches: int) -> float:
    return float(min(each[0, 0] for each in _sums(table, bound_s, num_microbatches)[1:]))


def _cheapest(table: _Table, bound_s: float, num_microbatches: int) -> tuple[Stage, ...] | None:
    """Return the stages of the least sum among those within the bound, if there are any."""
    sums = _sums(table, bound_s, num_microbatches)
    left = min(range(1, len(sums)), key=lambda s: sums[s][0, 0])
    if not np.isfinite(sums[left][0, 0]):
        return None
    stages, layer, device = [], 0, 0
    while left:
        own = _allowed(table, bound_s, min(left, num_microbatches))
        starting = [n for n, mesh in enumerate(table.meshes) if mesh.start == device]
        number, end = min(
            ((n, end) for n in starting for end in range(layer + 1, own.shape[2])),
            key=lambda pair: (
                own[pair[0], layer, pair[1]] + sums[left - 1][pair[1], table.meshes[pair[0]].stop]
            ),
        )
        mesh = table.meshes[number]
        cost = table.costs[number, layer, end]
        stages.append(Stage(layers=range(layer, end), devices=mesh, cost=cost))
        layer, device, left = end, mesh.stop, left - 1
    return tuple(stages)
