"""Assign layers to stages and stages to submeshes: dynamic programming under each slowest stage.

For every bound on the slowest stage, shortest first, the quickest way once through the pipeline is
found backwards, from the last layer; the best of all bounds is the answer::

    F(s, k, d) = min over submeshes d .. e and layers k .. i of    cost(k .. i, d .. e)
                     with cost <= bound and s microbatches         + hop(d) + F(s - 1, i, e)
                     in flight within the devices' memory

Source: Zheng et al., "Alpa", OSDI 2022, section 5.2, equations 3 and 4; here submeshes are ranges
of devices instead of counts, so that devices and links may differ, and the last may stay idle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from jaxpipe.baselines.autoshard.inter_op.submesh_stage import (
    StageCost,
    StageCosts,
    StagedModel,
    SubmeshStage,
    step_s,
)
from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmeshSpace:
    """The submeshes that stages are assigned to: ranges of devices, memory in bytes, hops.

    `hop_s(device)` are the seconds that a microbatch takes from the previous device to this one,
    plus those of its gradient back.
    """

    submeshes: tuple[range, ...]
    memory_bytes: Sequence[float]
    hop_s: Callable[[int], float]


def assign_stages(
    costs: StageCosts,
    space: SubmeshSpace,
    *,
    num_layers: int,
    num_microbatches: int,
    num_stages: int | None = None,
    tolerance: float = 0.0,
) -> StagedModel:
    """Return the stages with the shortest predicted step; `num_stages` of them, if it is given.

    The n-th stage from the end keeps n microbatches at most, as under 1F1B. Bounds on the slowest
    stage that differ by less than the fraction `tolerance` count as one bound: the step is then
    longer than the shortest one by that fraction at most.

    Cost: bounds x stages x submeshes x layers ** 2, in NumPy.

    Raises:
        PlanError: no stages fit the devices' memory.
    """
    table = _tabulate(costs, space, num_layers=num_layers)
    counts = (
        # A stage has a layer and a device at least, so neither can be fewer than the stages.
        range(1, min(num_layers, len(space.memory_bytes)) + 1)
        if num_stages is None
        else range(num_stages, num_stages + 1)
    )
    best: tuple[float, list[tuple[int, int, int]]] = (inf, [])
    for bound_s in _bounds(table.seconds, tolerance):
        # The slowest stage takes at least bound_s / (1 + tolerance), and later bounds are larger:
        # none of them can win (Alpa's early pruning of t_max).
        if (num_microbatches - 1) * bound_s / (1 + tolerance) >= best[0]:
            break
        once_s, path = _quickest(table, bound_s, counts=counts, num_microbatches=num_microbatches)
        best = min(
            best,
            (once_s + (num_microbatches - 1) * bound_s, path),
            key=lambda candidate: candidate[0],
        )
    if not best[1]:
        raise PlanError(
            f"no plan fits into device memory: {num_layers} layers, {len(space.memory_bytes)} "
            f"devices, `stages` {num_stages}; use more devices, or smaller microbatches"
        )
    stages = tuple(
        SubmeshStage(layers=range(k, i), devices=space.submeshes[m], cost=table.costs[m, k, i])
        for m, k, i in best[1]
    )
    # Again, by the slowest stage itself: the bound may exceed it by the tolerance.
    seconds = step_s(stages, num_microbatches=num_microbatches, hop_s=space.hop_s)
    return StagedModel(stages=stages, step_s=seconds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """All stages: `seconds[m, k, i]` of layers k .. i - 1 on submesh m; inf where it cannot be.

    `most_live` are the microbatches for which there is memory; `hop_s` those to each submesh.
    """

    costs: dict[tuple[int, int, int], StageCost]
    seconds: np.ndarray
    most_live: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    hop_s: np.ndarray
    num_devices: int


def _tabulate(costs: StageCosts, space: SubmeshSpace, *, num_layers: int) -> _Table:
    shape = (len(space.submeshes), num_layers + 1, num_layers + 1)
    seconds, most_live = np.full(shape, inf), np.zeros(shape)
    known: dict[tuple[int, int, int], StageCost] = {}
    for m, devices in enumerate(space.submeshes):
        room = min(space.memory_bytes[device] for device in devices)
        for k in range(num_layers):
            for i in range(k + 1, num_layers + 1):
                # Called about submeshes x layers ** 2 / 2 times.
                cost = costs(range(k, i), devices)
                if cost is not None and cost.held_bytes <= room:
                    known[m, k, i] = cost
                    seconds[m, k, i] = cost.seconds
                    left = room - cost.held_bytes
                    # Microbatches in flight that fit; a fraction below 1 allows none.
                    most_live[m, k, i] = left / cost.live_bytes if cost.live_bytes else inf
    return _Table(
        costs=known,
        seconds=seconds,
        most_live=most_live,
        starts=np.array([devices.start for devices in space.submeshes]),
        stops=np.array([devices.stop for devices in space.submeshes]),
        # No hop into device 0: only the first stage can start there.
        hop_s=np.array([space.hop_s(d.start) if d.start else 0.0 for d in space.submeshes]),
        num_devices=len(space.memory_bytes),
    )


def _bounds(seconds: np.ndarray, tolerance: float) -> list[float]:
    """Return bounds on the slowest stage, ascending; of close ones only the largest."""
    left = np.unique(seconds[np.isfinite(seconds)])
    bounds: list[float] = []
    while len(left):
        alike = int(np.searchsorted(left, left[0] * (1 + tolerance), side="right"))
        # Of a group the largest: a stage that is slower than the bound would be refused.
        bounds.append(float(left[alike - 1]))
        left = left[alike:]
    return bounds


def _quickest(
    table: _Table, bound_s: float, *, counts: range, num_microbatches: int
) -> tuple[float, list[tuple[int, int, int]]]:
    """Return the seconds of the fastest pass through the pipeline, and its submeshes and layers."""
    num_layers = table.seconds.shape[1] - 1
    allowed = np.where(table.seconds <= bound_s, table.seconds, inf)
    left = np.full((num_layers + 1, table.num_devices + 1), inf)
    left[num_layers] = 0.0  # all layers are assigned; devices may remain
    # Last stage first. Each holds submesh and end of the layers, by first layer and device.
    ways: list[np.ndarray] = []
    best_s, best_count = inf, 0
    for count in range(1, counts.stop):
        # The count-th stage from the end holds count microbatches under 1F1B, all of them at most.
        fitting = np.where(table.most_live >= min(count, num_microbatches), allowed, inf)
        behind = left[:, table.stops].T[:, None, :]  # submesh, 1, layer
        totals = fitting + behind + table.hop_s[:, None, None]
        through, submesh_numbers = totals.min(axis=2), totals.argmin(axis=2)  # submesh, layer
        left = np.full_like(left, inf)
        way = np.zeros((*left.shape, 2), dtype=int)
        # `<`: of equal submeshes the first one stays, so the plan is deterministic.
        for m, start in enumerate(table.starts):
            better = through[m] < left[:, start]
            left[better, start] = through[m, better]
            way[better, start, 0], way[better, start, 1] = m, submesh_numbers[m, better]
        ways.append(way)
        # [0, 0]: all layers assigned, from device 0 on.
        if count in counts and left[0, 0] < best_s:
            best_s, best_count = float(left[0, 0]), count
    return best_s, _retrace(table, ways[:best_count])


def _retrace(table: _Table, ways: list[np.ndarray]) -> list[tuple[int, int, int]]:
    layer, device, path = 0, 0, []
    for way in reversed(ways):
        submesh, stop = (int(number) for number in way[layer, device])
        path.append((submesh, layer, stop))
        layer, device = stop, int(table.stops[submesh])
    return path
