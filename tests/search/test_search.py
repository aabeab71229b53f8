"""Decisions: against trying all placements, under limits, and reproducibly."""

from dataclasses import replace
from itertools import count, permutations

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, check_plan
from jaxpipe.plan.cost import BytesPerParameter, estimate, overfull
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Effort, Fixed, Objective, Task, build, dtfm_plans, search
from jaxpipe.search.dtfm import dtfm_cost
from tests.plan.models import cluster_of, profile_of


def closed_form(task: Task) -> Objective:
    return lambda plan: estimate(plan, task.cluster, task.profile, slow=task.slow).step_s


@pytest.mark.parametrize("seed", range(5))
def test_small_clusters_are_decided_as_trying_all_placements_does(seed: int):
    cluster = cluster_of(1.0, 1.0, 0.5, 2.0, seed=seed, symmetric=False)
    task = Task(cluster=cluster, profile=profile_of(4, layer_parameters=10_000), batch=4)
    decision = search(task, closed_form(task), effort=Effort(num_changes=200))
    best = min(
        closed_form(task)(build(task, placement, microbatch=1, schedule=ScheduleKind.GPIPE))
        for stages, replicas in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)]
        for devices in permutations(range(4), stages * replicas)
        for placement in [np.array(devices).reshape(replicas, stages)]
    )
    assert decision.value <= 1.02 * best
    assert decision.value == closed_form(task)(decision.plan)
    check_plan(decision.plan, num_devices=4)


def test_fast_devices_get_more_layers_and_hopeless_ones_are_left_out():
    cluster = cluster_of(4.0, 1.0, 0.01)
    task = Task(cluster=cluster, profile=profile_of(10), batch=16)
    decision = search(task, closed_form(task))
    assert decision.left_out == (2,)
    layers = dict(zip(decision.plan.placement[0], decision.plan.cut, strict=True))
    assert decision.plan.num_stages == 2
    assert layers[0] >= 3 * layers[1]


def test_a_plan_fits_into_memory():
    cluster = topo.load("case3-universities")
    profile = profile_of(8, layer_parameters=10**9)
    task = Task(
        cluster=cluster, profile=profile, batch=32, bytes_each=BytesPerParameter(optimizer=0)
    )
    decision = search(task, closed_form(task), effort=Effort(num_valued=2, num_changes=5))
    assert overfull(decision.plan, profile, cluster, each=task.bytes_each) == {}
    assert max(decision.plan.cut) <= 2


def test_what_fits_nowhere_is_refused():
    cluster = topo.load("case3-universities")
    task = Task(cluster=cluster, profile=profile_of(1, layer_parameters=10**10), batch=1)
    with pytest.raises(
        PlanError,
        match=r"^`plan.cluster` \(.case3-universities.\): no plan fits 1 layers.* lacks [\d,]+ MiB",
    ):
        search(task, closed_form(task))


def test_the_objective_decides_and_a_seed_gives_the_same_decision():
    cluster = cluster_of(*[1.0] * 4)
    task = Task(cluster=cluster, profile=profile_of(4), batch=8)

    def fewest_stages(plan: Plan) -> float:
        return plan.num_stages + 0.1 * plan.placement[0][0]

    first, second = (
        search(task, fewest_stages, effort=Effort(num_changes=60, seed=3)) for _ in range(2)
    )
    assert first == second
    assert (first.plan.num_stages, first.value) == (1, 1.0)


def test_stages_and_replicas_can_be_given():
    fixed = Fixed(stages=3, replicas=2)
    task = Task(cluster=cluster_of(*[1.0] * 6), profile=profile_of(6), batch=8, fixed=fixed)
    decision = search(task, closed_form(task), effort=Effort(num_changes=10))
    assert [each.name for each in decision.of_choice("shape")] == ["3 stages x 2 replicas"]
    assert (decision.plan.num_stages, decision.plan.num_replicas) == (3, 2)


@pytest.mark.parametrize(("stages", "replicas"), [(7, None), (None, 3), (4, 2)])
def test_stages_and_replicas_that_do_not_fit_are_refused(stages: int | None, replicas: int | None):
    task = Task(
        cluster=cluster_of(*[1.0] * 6),
        profile=profile_of(6),
        batch=8,
        fixed=Fixed(stages=stages, replicas=replicas),
    )
    with pytest.raises(PlanError, match=r"`train.batch` 8 must fit 6 devices and 6 layers"):
        search(task, closed_form(task))


def test_dtfms_objective_reaches_the_best_cost_known():
    cluster = topo.load("case3-universities")
    task = Task(cluster=cluster, profile=profile_of(24), batch=1024)
    plan = search(
        task,
        closed_form(task),
        generators=((dtfm_plans, 1.0),),
        effort=Effort(seconds=60.0),
    ).plan
    groups = np.array(plan.placement).T.tolist()
    cost = dtfm_cost(cluster.latency_s, cluster.bandwidth_bytes_per_s, groups)
    assert round(cost.total, 4) == 16.0868
    assert (plan.num_stages, plan.num_replicas, plan.schedule) == (8, 8, ScheduleKind.GPIPE)


def test_dtfms_plan_keeps_what_is_set_and_fits_into_memory():
    cluster = topo.load("two-region")
    devices = tuple(replace(device, memory_bytes=40_000) for device in cluster.devices)
    task = Task(
        cluster=replace(cluster, devices=devices),
        profile=profile_of(4),
        batch=32,
        fixed=Fixed(stages=4, microbatch=2, all_reduce=AllReduceKind.RING),
    )
    plan = search(task, closed_form(task), generators=((dtfm_plans, 1.0),)).plan
    assert (plan.num_stages, plan.microbatch, plan.all_reduce) == (4, 2, AllReduceKind.RING)
    # GPipe keeps 16 messages of 2 kB a stage, eager 1F1B up to 7.
    assert plan.schedule is ScheduleKind.GPIPE
    small = tuple(replace(device, memory_bytes=30_000) for device in cluster.devices)
    task = replace(task, cluster=replace(cluster, devices=small))
    plan = search(task, closed_form(task), generators=((dtfm_plans, 1.0),)).plan
    assert plan.schedule is ScheduleKind.EAGER_ONE_F_ONE_B


def test_a_decision_ends_in_time():
    task = Task(cluster=cluster_of(1.0, 1.0), profile=profile_of(2), batch=4)
    times = count(step=1.0)
    effort = Effort(num_changes=10**9, seconds=20.0)
    decision = search(task, closed_form(task), effort=effort, clock=lambda: next(times))
    assert decision.num_valued <= 21


@pytest.mark.parametrize("effort", [{"num_valued": 0}, {"num_changes": -1}])
def test_no_effort_is_refused(effort: dict[str, int]):
    with pytest.raises(PlanError, match="`num_valued` must be at least 1"):
        Effort(**effort)  # pyright: ignore[reportArgumentType]


def test_no_batch_is_refused():
    with pytest.raises(PlanError, match="`batch` must be at least 1, not 0"):
        Task(cluster=cluster_of(1.0), profile=profile_of(1), batch=0)
