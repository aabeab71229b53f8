"""A simulated step is no shorter than its bound, which 1F1B reaches on equal devices alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.plan import Plan
from jaxpipe.plan.cost import Profile
from jaxpipe.schedule import ScheduleKind, greedy
from jaxpipe.search import Task, build
from jaxpipe.search.build_plan import is_possible
from jaxpipe.search.generators.alternatives import other_schedules
from jaxpipe.search.generators.unlike import unlike_plans
from jaxpipe.simulate import (
    Conditions,
    Overheads,
    plan_step,
    plan_step_s,
    stage_costs,
    step_bound_s,
)
from jaxpipe.topo import Precision, without_network
from tests.plan.models import cluster_of, profile_of

SPEEDS = st.lists(st.floats(0.25, 4.0), min_size=1, max_size=5)


def split_profile(weight: float, rest: float) -> Profile:
    """Return four layers whose backward is split in two unequal parts."""
    profile = profile_of(4)
    parts = (
        replace(
            part,
            backward_weight_s=weight * part.backward_s,
            backward_input_s=rest * part.backward_s,
        )
        for part in profile.layers
    )
    return replace(profile, layers=tuple(parts))


def measured(task: Task, plan: Plan, conditions: Conditions) -> Plan:
    """Return a plan with a schedule of split backwards in an order of its own."""
    schedule = greedy(
        stage_costs(plan_step(plan, conditions)),
        num_microbatches=plan.num_microbatches,
        warmup=(2,) * plan.num_stages,
        max_live=(3,) * plan.num_stages,
    )
    return replace(plan, schedule=schedule)


@settings(deadline=None, max_examples=25)
@given(
    SPEEDS,
    st.integers(1, 2),
    st.sampled_from([1, 2]),
    st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)),
    st.floats(0.5, 1.0),
    st.integers(0, 99),
)
def test_no_step_is_shorter_than_its_bound(
    speeds: list[float],
    replicas: int,
    microbatch: int,
    halves: tuple[float, float],
    local_factor: float,
    seed: int,
):
    replicas = min(replicas, len(speeds))
    stages = min(4, len(speeds) // replicas)
    task = Task(
        cluster=cluster_of(*speeds, seed=seed, symmetric=False),
        profile=split_profile(*halves),
        batch=8,
        precision=Precision.FP32,
    )
    conditions = Conditions(
        cluster=task.cluster,
        profile=task.profile,
        slow=task.slow,
        gradient_bytes=4,
        overheads=Overheads(local_factor=local_factor),
    )
    placement = np.random.default_rng(seed).permutation(len(speeds))[: stages * replicas]
    even = build(
        task,
        placement.reshape(replicas, stages),
        microbatch=microbatch,
        schedule=ScheduleKind.ONE_F_ONE_B,
    )
    plans = [even, *(plan for _, plan in other_schedules(task, even)), *unlike_plans(task, even)]
    plans += [measured(task, even, conditions)] if stages > 1 else []
    for plan in plans:
        assert step_bound_s(plan, conditions) <= plan_step_s(plan, conditions) * (1 + 1e-9)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 4), (2, 1), (3, 5)])
def test_the_bound_is_the_step_of_1f1b_on_equal_devices_without_a_network(
    stages: int, microbatches: int
):
    cluster = without_network(cluster_of(*[1.0] * stages))
    task = Task(cluster=cluster, profile=profile_of(2 * stages), batch=microbatches)
    plan = build(
        task,
        np.arange(stages).reshape(1, stages),
        microbatch=1,
        schedule=ScheduleKind.ONE_F_ONE_B,
    )
    assert is_possible(plan)
    conditions = Conditions(
        cluster=cluster, profile=task.profile, slow=np.ones(stages), gradient_bytes=4
    )
    expected = (microbatches + stages - 1) * 2  # two layers of a second to a stage
    assert step_bound_s(plan, conditions) == pytest.approx(expected)
    assert plan_step_s(plan, conditions) == pytest.approx(expected)
