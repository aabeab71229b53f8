"""Stages, against all ways to cut layers and devices."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import topo
from jaxpipe.autoshard.inter_op import StageCost, assign_stages, plan_of, submeshes
from jaxpipe.errors import PlanError
from jaxpipe.plan import check_plan


def cuts(total: int, parts: int) -> Iterator[list[range]]:
    for inner in combinations(range(1, total), parts - 1):
        ends = [0, *inner, total]
        yield [range(a, b) for a, b in pairwise(ends)]


def least(
    costs: dict[tuple[range, range], StageCost | None],
    num_layers: int,
    meshes: Sequence[range],
    memory: Sequence[float],
    num_microbatches: int,
) -> float:
    best = inf
    for parts in range(1, min(num_layers, len(memory)) + 1):
        for layers, devices in product(cuts(num_layers, parts), cuts(len(memory), parts)):
            if any(each not in meshes for each in devices):
                continue
            chosen = [costs[pair] for pair in zip(layers, devices, strict=True)]
            needed = [
                inf
                if cost is None
                else cost.fixed_bytes + min(parts - place, num_microbatches) * cost.live_bytes
                for place, cost in enumerate(chosen)
            ]
            rooms = [min(memory[device] for device in each) for each in devices]
            if any(need > room for need, room in zip(needed, rooms, strict=True)):
                continue
            seconds = [cost.seconds for cost in chosen if cost is not None]
            best = min(best, sum(seconds) + (num_microbatches - 1) * max(seconds))
    return best


@given(
    seed=st.integers(0, 2**32 - 1),
    num_layers=st.integers(1, 5),
    hosts=st.sampled_from([(1,), (2,), (4,), (2, 2), (1, 3), (1, 1, 2)]),
    num_microbatches=st.integers(1, 6),
    every_size=st.booleans(),
)
def test_the_stages_are_the_best_of_all(
    seed: int, num_layers: int, hosts: tuple[int, ...], num_microbatches: int, *, every_size: bool
) -> None:
    rng = np.random.default_rng(seed)
    meshes = submeshes(hosts, every_size=every_size)
    memory = rng.integers(4, 12, sum(hosts)).astype(float).tolist()
    ranges = [range(a, b) for a in range(num_layers) for b in range(a + 1, num_layers + 1)]
    costs = {
        pair: None
        if rng.random() < 0.1
        else StageCost(
            seconds=float(rng.integers(1, 9)),
            fixed_bytes=float(rng.integers(0, 5)),
            live_bytes=float(rng.integers(0, 4)),
        )
        for pair in product(ranges, meshes)
    }
    expected = least(costs, num_layers, meshes, memory, num_microbatches)

    def found() -> float:
        return assign_stages(
            lambda layers, devices: costs[layers, devices],
            num_layers=num_layers,
            meshes=meshes,
            memory_bytes=memory,
            num_microbatches=num_microbatches,
        ).seconds

    if expected == inf:
        with pytest.raises(PlanError, match="each stage fits its devices"):
            found()
    else:
        assert found() == expected


def test_a_fast_device_gets_more_layers_and_the_plan_runs() -> None:
    cluster = topo.load("two-region")
    speeds = [3.0, 1.0, 1.0, 1.0]
    found = assign_stages(
        lambda layers, devices: StageCost(
            seconds=len(layers) / sum(speeds[device] for device in devices)
        ),
        num_layers=6,
        meshes=tuple(range(device, device + 1) for device in range(4)),
        memory_bytes=[1.0] * 4,
        num_microbatches=100,
    )
    assert [len(stage.layers) for stage in found.stages] == [3, 1, 1, 1]
    plan = plan_of(found, cluster, num_microbatches=100)
    check_plan(plan, num_devices=len(cluster))
    assert plan.cut == (3, 1, 1, 1)
    assert plan.placement == ((0, 1, 2, 3),)


def test_submeshes_of_uneven_hosts() -> None:
    assert range(3) in submeshes([3, 2])
    assert range(1, 3) not in submeshes([3, 2])
    assert range(1, 3) in submeshes([3, 2], every_size=True)
    assert range(2, 4) not in submeshes([3, 2], every_size=True)
