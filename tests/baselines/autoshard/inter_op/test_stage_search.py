"""Stages and submeshes, against all ways to assign them."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.inter_op import (
    ProfiledCosts,
    StageCost,
    StageCosts,
    StagedModel,
    SubmeshSpace,
    SubmeshStage,
    alpa_plan,
    assign_stages,
    plan_of,
    step_s,
    submesh_space,
    submeshes,
)
from jaxpipe.errors import PlanError
from jaxpipe.plan import check_plan
from jaxpipe.plan.cost import flop_profile
from jaxpipe.search import Fixed, Task
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import Cluster
from tests.simulate.uniform import cluster


def random_costs(random: np.random.Generator) -> StageCosts:
    """Return costs that know nothing of layers or devices, and some stages that cannot be."""
    known: dict[tuple[range, range], StageCost | None] = {}

    def costs(layers: range, devices: range) -> StageCost | None:
        if (layers, devices) not in known:
            seconds, held, live = random.integers(1, 9, size=3).tolist()
            cost = StageCost(seconds=seconds, held_bytes=held, live_bytes=live)
            known[layers, devices] = cost if random.random() < 0.8 else None
        return known[layers, devices]

    return costs


def all_ways(
    costs: StageCosts, space: SubmeshSpace, *, layers: range, devices: int
) -> Iterator[tuple[SubmeshStage, ...]]:
    """Yield all stages of the layers on submeshes from a device on."""
    if not layers:
        yield ()
    for mesh in space.submeshes:
        for stop in range(layers.start + 1, layers.stop + 1):
            cost = costs(range(layers.start, stop), mesh) if mesh.start == devices else None
            if cost is not None:
                first = SubmeshStage(layers=range(layers.start, stop), devices=mesh, cost=cost)
                rest = range(stop, layers.stop)
                for others in all_ways(costs, space, layers=rest, devices=mesh.stop):
                    yield (first, *others)


def fits(stages: tuple[SubmeshStage, ...], space: SubmeshSpace, *, num_microbatches: int) -> bool:
    return all(
        stage.cost.held_bytes + min(ahead, num_microbatches) * stage.cost.live_bytes
        <= min(space.memory_bytes[device] for device in stage.devices)
        for ahead, stage in enumerate(reversed(stages), start=1)
    )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 999)
)
def test_no_other_stages_are_faster(
    layers: int, devices: int, per_host: int, microbatches: int, seed: int
):
    random = np.random.default_rng(seed)
    hops = random.integers(0, 4, size=devices).tolist()
    space = SubmeshSpace(
        submeshes=submeshes(cluster(devices, devices_per_host=per_host)),
        memory_bytes=random.integers(4, 30, size=devices).tolist(),
        hop_s=lambda device: hops[device],
    )
    costs = random_costs(random)
    seconds = [
        step_s(way, num_microbatches=microbatches, hop_s=space.hop_s)
        for way in all_ways(costs, space, layers=range(layers), devices=0)
        if fits(way, space, num_microbatches=microbatches)
    ]
    if not seconds:
        with pytest.raises(PlanError, match="no plan fits into device memory"):
            assign_stages(costs, space, num_layers=layers, num_microbatches=microbatches)
        return
    found = assign_stages(costs, space, num_layers=layers, num_microbatches=microbatches)
    assert found.step_s == pytest.approx(min(seconds))
    assert fits(found.stages, space, num_microbatches=microbatches)
    assert sum(found.cut) == layers
    near = assign_stages(
        costs, space, num_layers=layers, num_microbatches=microbatches, tolerance=0.5
    )
    assert near.step_s <= 1.5 * min(seconds)


def task_on(where: Cluster, *, layers: int, batch: int) -> Task:
    profile = flop_profile(
        num_layers=layers,
        layer_flop=1.0,
        layer_parameters=1,
        layer_kept_bytes=1,
        activation_bytes=1,
        flops_per_s=1.0,
    )
    return Task(cluster=where, profile=profile, batch=batch)


def test_a_slow_device_gets_fewer_layers():
    where = cluster(3, bytes_per_s=1e9)
    slow = replace(where.devices[2], effective_flops_per_s=0.5)
    fast = [replace(device, effective_flops_per_s=1.0) for device in where.devices[:2]]
    task = task_on(replace(where, devices=(*fast, slow)), layers=5, batch=20)
    costs = ProfiledCosts(task=task, microbatch=1, num_microbatches=20)
    found = assign_stages(
        costs, submesh_space(task, microbatch=1), num_layers=5, num_microbatches=20
    )
    assert found.cut == (2, 2, 1)


@pytest.mark.parametrize(("equal", "replicas", "stages"), [(1, 1, 4), (2, 2, 2), (4, 4, 1)])
def test_equal_submeshes_are_a_plan_that_takes_as_long(equal: int, replicas: int, stages: int):
    where = cluster(4, bytes_per_s=1e12)
    task = task_on(where, layers=4, batch=32)
    costs = ProfiledCosts(task=task, microbatch=4, num_microbatches=8)
    space = submesh_space(task, microbatch=4, equal=equal)
    found = assign_stages(costs, space, num_layers=4, num_microbatches=8, num_stages=stages)
    plan = plan_of(found, task, microbatch=4)
    check_plan(plan, num_devices=4)
    assert (plan.num_replicas, plan.num_stages, plan.num_microbatches) == (replicas, stages, 8)
    conditions = Conditions(cluster=where, profile=task.profile, slow=task.slow, gradient_bytes=4)
    assert plan_step_s(plan, conditions) == pytest.approx(found.step_s, rel=1e-6)


def test_uneven_submeshes_are_no_plan():
    task = task_on(cluster(3), layers=2, batch=2)
    cost = StageCost(seconds=1.0)
    staged = StagedModel(
        stages=(
            SubmeshStage(layers=range(1), devices=range(1), cost=cost),
            SubmeshStage(layers=range(1, 2), devices=range(1, 3), cost=cost),
        ),
        step_s=3.0,
    )
    with pytest.raises(PlanError, match=r"they have \[1, 2\] devices; search with `equal`"):
        plan_of(staged, task, microbatch=2)


def test_the_plan_is_the_fastest_of_all_equal_submeshes():
    where = cluster(4, bytes_per_s=2.0)
    task = task_on(where, layers=4, batch=8)
    found = alpa_plan(task)
    check_plan(found.plan, num_devices=4)
    seconds = [
        assign_stages(
            ProfiledCosts(task=task, microbatch=size * each, num_microbatches=8 // (size * each)),
            submesh_space(task, microbatch=size * each, equal=size),
            num_layers=4,
            num_microbatches=8 // (size * each),
        ).step_s
        for size in (1, 2, 4)
        for each in (1, 2, 4)
        if 8 % (size * each) == 0
    ]
    assert found.staged.step_s <= 1.01 * min(seconds)


def test_the_task_decides_stages_and_replicas():
    task = task_on(cluster(6, bytes_per_s=1e9), layers=4, batch=6)
    found = alpa_plan(replace(task, fixed=Fixed(stages=2, replicas=3)))
    assert (found.plan.num_stages, found.plan.num_replicas) == (2, 3)
    assert found.uneven is None
    assert alpa_plan(replace(task, fixed=Fixed(stages=3))).plan.num_stages == 3
    with pytest.raises(PlanError, match=r"`stages` 4, `replicas` 2, `batch` 6, 4 layers, 6"):
        alpa_plan(replace(task, fixed=Fixed(stages=4, replicas=2)))


def test_uneven_submeshes_are_predicted_where_they_are_faster():
    where = cluster(3, bytes_per_s=1e12, devices_per_host=2)
    costly_head = replace(task_on(where, layers=1, batch=8).profile.layers[0], forward_s=6.0)
    task = task_on(where, layers=2, batch=8)
    task = replace(
        task, profile=replace(task.profile, layers=(costly_head, task.profile.layers[1]))
    )
    found = alpa_plan(task)
    assert found.uneven is not None
    assert found.uneven.step_s < found.staged.step_s
    assert [len(stage.devices) for stage in found.uneven.stages] == [2, 1]
    assert len({len(stage.devices) for stage in found.staged.stages}) == 1
