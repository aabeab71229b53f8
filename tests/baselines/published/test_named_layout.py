"""Published baselines as plans."""

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.baselines.published.dtfm import scheduled, unscheduled
from jaxpipe.baselines.published.named_layout import named_plan
from jaxpipe.baselines.systems import System
from jaxpipe.errors import PlanError
from jaxpipe.plan import Sharing, check_hosts, check_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task
from tests.plan.models import profile_of


def task_on(name: str, *, num_layers: int = 24, batch: int = 1024) -> Task:
    return Task(cluster=topo.load(name), profile=profile_of(num_layers), batch=batch)


EIGHT_STAGES = (System.MEGATRON_P8, System.DTFM, System.DTFM_UNSCHEDULED)


@pytest.mark.parametrize("name", ["case1-datacenter", "case5-worldwide"])
@pytest.mark.parametrize("system", EIGHT_STAGES)
def test_a_baseline_has_eight_equal_stages_on_its_devices(name: str, system: System):
    task = task_on(name)
    plan = named_plan(system, task, seed=2022)
    check_plan(plan, num_devices=len(task.cluster))
    assert (plan.cut, plan.batch, plan.microbatch) == ((3,) * 8, 1024, 1)
    assert plan.schedule is (
        ScheduleKind.ONE_F_ONE_B if system is System.MEGATRON_P8 else ScheduleKind.GPIPE
    )
    if system is System.DTFM:
        assert plan.placement == scheduled(task.cluster, batch=1024)
    elif system is System.DTFM_UNSCHEDULED:
        assert plan.placement == unscheduled(task.cluster, batch=1024, seed=2022)
        assert plan.placement != named_plan(system, task, seed=1).placement
    else:
        # Megatron numbers stage by stage: the first replicas of a stage are neighbours.
        assert np.array(plan.placement).shape == (len(task.cluster) // 8, 8)


@pytest.mark.parametrize(
    ("system", "stages", "tensor"),
    [(System.MEGATRON_T8, 1, 8), (System.MEGATRON_P4T2, 4, 2), (System.MEGATRON_P2T4, 2, 4)],
)
def test_tensor_parallelism_stays_inside_hosts(system: System, stages: int, tensor: int):
    task = task_on("case1-datacenter")
    plan = named_plan(system, task, seed=0)
    check_plan(plan, num_devices=64)
    check_hosts(plan.groups, task.cluster)
    assert (plan.num_stages, plan.num_replicas) == (stages, 64 // stages // tensor)
    assert {len(group) for group in plan.groups} == {tensor}
    assert sorted(device for group in plan.groups for device in group) == list(range(64))
    assert plan.sharing is Sharing.TENSOR


def test_zero3_has_a_replica_for_each_host():
    task = task_on("case1-datacenter")
    plan = named_plan(System.ZERO3, task, seed=0)
    check_plan(plan, num_devices=64)
    assert plan.groups == tuple(tuple(range(8 * n, 8 * n + 8)) for n in range(8))
    # A sample of each microbatch for each device.
    assert (plan.sharing, plan.microbatch, plan.batch) == (Sharing.ZERO3, 8, 1024)


def test_groups_across_hosts_are_refused():
    with pytest.raises(PlanError, match=r"on several hosts, .* ranks of 2 devices .*; take"):
        named_plan(System.MEGATRON_P4T2, task_on("case5-worldwide"), seed=0)
    with pytest.raises(PlanError, match=r"`--batch` .* hosts have 1, 4 devices, 64 in all"):
        named_plan(System.ZERO3, task_on("case2-spot"), seed=0)


def test_a_baseline_that_does_not_fit_is_refused():
    with pytest.raises(PlanError, match=r"`plan.stages` .8. must be at most 4"):
        named_plan(System.DTFM, task_on("case5-worldwide", num_layers=4), seed=0)
    with pytest.raises(PlanError, match=r"`--batch` .1024. and 4 devices .*; take a multiple of 8"):
        named_plan(System.MEGATRON_P8, task_on("two-region"), seed=0)
