"""Plans whose replicas are unlike: complete, within memory, and better where devices differ."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.plan import check_plan
from jaxpipe.plan.cost import BytesPerParameter
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Effort, Fixed, Task, build, search
from jaxpipe.search.generators.unlike import (
    is_worth_trying,
    moved_microbatches,
    proportional,
    unlike_plans,
)
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import Precision, without_network
from tests.plan.models import cluster_of, profile_of


def task_of(*tflops: float, batch: int = 12, layers: int = 6) -> Task:
    """Return a model on devices of these speeds, joined by links that take no time."""
    return Task(
        cluster=without_network(cluster_of(*tflops)),
        profile=profile_of(layers),
        batch=batch,
        precision=Precision.FP32,
    )


def seconds(task: Task):
    conditions = Conditions(
        cluster=task.cluster, profile=task.profile, slow=task.slow, gradient_bytes=4
    )
    return lambda plan: plan_step_s(plan, conditions)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.25, 4.0), min_size=1, max_size=7), st.integers(0, 99))
def test_each_plan_is_complete(tflops: list[float], seed: int):
    task = task_of(*tflops)
    replicas = 1 + seed % len(tflops)
    stages = min(6, len(tflops) // replicas)
    task = replace(task, batch=4 * replicas)
    placement = np.random.default_rng(seed).permutation(len(tflops))[: stages * replicas]
    even = build(
        task,
        placement.reshape(replicas, stages),
        microbatch=2,
        schedule=ScheduleKind.ONE_F_ONE_B,
    )
    found = list(unlike_plans(task, even))
    assert found
    for plan in found:
        check_plan(plan, num_devices=len(tflops))
        assert plan.batch == task.batch
    for plan in moved_microbatches(task, found[0]):
        check_plan(plan, num_devices=len(tflops))
        assert plan.batch == task.batch


def test_unlike_devices_are_all_used():
    # Two layers for three devices: three stages are too many, and equal shares too slow.
    task = task_of(2.0, 1.0, 1.0, batch=8, layers=2)
    found = search(task, seconds(task), effort=Effort(num_valued=20, num_changes=200))
    best, least = found.plan, found.value
    assert is_worth_trying(task, best)
    assert found.left_out == ()
    # 16 seconds of work for four times the profiled device: no plan is faster.
    assert least == pytest.approx(4.0)
    assert sorted(pipeline.num_samples for pipeline in best.pipelines) == [2, 2, 4]


@pytest.mark.parametrize(
    "fixed",
    [
        Fixed(stages=1, replicas=2),
        Fixed(stages=1, replicas=2, microbatch=2),
        Fixed(replicas=2, cut=(6,), devices=(1, 0)),
    ],
)
def test_shares_are_unequal_where_the_shape_is_set(fixed: Fixed):
    task = replace(task_of(2.0, 1.0), fixed=fixed)
    found = search(task, seconds(task), effort=Effort(num_valued=20, num_changes=0))
    shares = {pipeline.devices: pipeline.num_samples for pipeline in found.plan.pipelines}
    assert fixed.keeps(found.plan)
    # Twice as fast, twice as many samples.
    assert shares == {(0,): 8, (1,): 4}


def test_a_cut_that_is_set_is_that_of_all_replicas():
    task = task_of(2.0, 2.0, 1.0, 1.0)
    task = replace(task, fixed=Fixed(cut=(3, 3), replicas=2))
    found = search(task, seconds(task), effort=Effort(num_valued=20, num_changes=0))
    assert [pipeline.cut for pipeline in found.plan.pipelines] == [(3, 3), (3, 3)]
    assert sorted(pipeline.num_samples for pipeline in found.plan.pipelines) == [4, 8]


def test_what_does_not_fit_is_not_proposed():
    task = task_of(1.0, 1.0)
    devices = tuple(replace(each, memory_bytes=1) for each in task.cluster.devices)
    small = replace(task, cluster=replace(task.cluster, devices=devices))
    even = build(task, np.array([[0, 1]]), microbatch=2, schedule=ScheduleKind.GPIPE)
    assert list(unlike_plans(small, even)) == []
    assert small.bytes_each == BytesPerParameter()


@given(st.integers(1, 50), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_shares_add_up_and_none_is_empty(spare: int, weights: list[float]):
    total = len(weights) + spare
    counts = proportional(total, weights)
    assert sum(counts) == total
    assert min(counts) >= 1
    by_weight = sorted(zip(weights, counts, strict=True))
    assert all(a[1] <= b[1] for a, b in pairwise(by_weight) if a[0] < b[0])
