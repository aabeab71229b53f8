"""Published baselines as plans."""

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.baselines.published.dtfm import scheduled, unscheduled
from jaxpipe.baselines.published.named_layout import NamedLayout, named_plan
from jaxpipe.errors import PlanError
from jaxpipe.plan import Sharing, check_hosts, check_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task
from tests.plan.models import profile_of


def task_on(name: str, *, num_layers: int = 24, batch: int = 1024) -> Task:
    return Task(cluster=topo.load(name), profile=profile_of(num_layers), batch=batch)


EIGHT_STAGES = (NamedLayout.P8, NamedLayout.DTFM, NamedLayout.RANDOM)


@pytest.mark.parametrize("name", ["case1-datacenter", "case5-worldwide"])
@pytest.mark.parametrize("layout", EIGHT_STAGES)
def test_a_baseline_has_eight_equal_stages_on_its_devices(name: str, layout: NamedLayout):
    task = task_on(name)
    plan = named_plan(layout, task, seed=2022)
    check_plan(plan, num_devices=len(task.cluster))
    assert (plan.cut, plan.batch, plan.microbatch) == ((3,) * 8, 1024, 1)
    assert plan.schedule is (
        ScheduleKind.ONE_F_ONE_B if layout is NamedLayout.P8 else ScheduleKind.GPIPE
    )
    if layout is NamedLayout.DTFM:
        assert plan.placement == scheduled(task.cluster, batch=1024)
    elif layout is NamedLayout.RANDOM:
        assert plan.placement == unscheduled(task.cluster, batch=1024, seed=2022)
        assert plan.placement != named_plan(layout, task, seed=1).placement
    else:
        # Megatron numbers stage by stage: the first replicas of a stage are neighbours.
        assert np.array(plan.placement).shape == (len(task.cluster) // 8, 8)


@pytest.mark.parametrize(
    ("layout", "stages", "tensor"),
    [(NamedLayout.T8, 1, 8), (NamedLayout.P4T2, 4, 2), (NamedLayout.P2T4, 2, 4)],
)
def test_tensor_parallelism_stays_inside_hosts(layout: NamedLayout, stages: int, tensor: int):
    task = task_on("case1-datacenter")
    plan = named_plan(layout, task, seed=0)
    check_plan(plan, num_devices=64)
    check_hosts(plan.groups, task.cluster)
    assert (plan.num_stages, plan.num_replicas) == (stages, 64 // stages // tensor)
    assert {len(group) for group in plan.groups} == {tensor}
    assert sorted(device for group in plan.groups for device in group) == list(range(64))
    assert plan.sharing is Sharing.TENSOR


def test_zero3_has_a_replica_for_each_host():
    task = task_on("case1-datacenter")
    plan = named_plan(NamedLayout.ZERO3, task, seed=0)
    check_plan(plan, num_devices=64)
    assert plan.groups == tuple(tuple(range(8 * n, 8 * n + 8)) for n in range(8))
    # A sample of each microbatch for each device.
    assert (plan.sharing, plan.microbatch, plan.batch) == (Sharing.ZERO3, 8, 1024)


def test_groups_across_hosts_are_refused():
    with pytest.raises(PlanError, match=r"ranks of 2 devices, .* are on several hosts; take"):
        named_plan(NamedLayout.P4T2, task_on("case5-worldwide"), seed=0)
    with pytest.raises(PlanError, match=r"has hosts of 1, 4 devices, 64 in all, and `--batch` is"):
        named_plan(NamedLayout.ZERO3, task_on("case2-spot"), seed=0)


def test_a_baseline_that_does_not_fit_is_refused():
    with pytest.raises(PlanError, match="use at most 4 stages"):
        named_plan(NamedLayout.DTFM, task_on("case5-worldwide", num_layers=4), seed=0)
    with pytest.raises(PlanError, match="4 devices and `--batch` is 1024; take a multiple of 8"):
        named_plan(NamedLayout.P8, task_on("two-region"), seed=0)
