"""Laws of the search: plans fit, keep what is fixed, and are no worse than the default or all."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, check_plan, even_partition
from jaxpipe.plan.cost import Part, overfull
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Effort, Fixed, Objective, Task, build, search
from jaxpipe.search.best import HANDICAP
from jaxpipe.search.build_plan import is_possible
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import Precision, without_network
from tests.plan.models import cluster_of, profile_of

EFFORT = Effort(num_valued=4, num_changes=30)
SPEEDS = st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=4)


def simulated(task: Task) -> Objective:
    conditions = Conditions(
        cluster=task.cluster, profile=task.profile, slow=task.slow, gradient_bytes=4
    )
    return lambda plan: plan_step_s(plan, conditions)


def task_of(speeds: list[float], seed: int, *, layers: int, batch: int) -> Task:
    """Return a model with an expensive head on devices of these speeds, with unlike links."""
    profile = replace(profile_of(layers), head=Part(forward_s=0.5, backward_s=1.0, parameters=50))
    cluster = cluster_of(*speeds, seed=seed, symmetric=False)
    return Task(cluster=cluster, profile=profile, batch=batch, precision=Precision.FP32)


@st.composite
def fixed_choices(draw: st.DrawFn) -> Fixed:
    def maybe(values: list[int]) -> int | None:
        return draw(st.none() | st.sampled_from(values))

    return Fixed(
        num_ranks=maybe([1, 2, 3]),
        stages=maybe([1, 2, 4]),
        replicas=maybe([1, 2]),
        microbatch=maybe([1, 2, 4]),
        chunks=maybe([1, 2]),
        schedule=draw(st.none() | st.sampled_from(list(ScheduleKind))),
        all_reduce=draw(st.none() | st.sampled_from([AllReduceKind.RING, AllReduceKind.CHAIN])),
    )


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.filter_too_much])
@given(SPEEDS, st.integers(0, 99), fixed_choices(), st.sampled_from([2**12, 2**20]))
def test_plans_are_complete_fit_and_keep_what_is_fixed(
    speeds: list[float], seed: int, fixed: Fixed, memory: int
):
    task = replace(task_of(speeds, seed, layers=5, batch=8), fixed=fixed)
    devices = tuple(replace(each, memory_bytes=memory) for each in task.cluster.devices)
    task = replace(task, cluster=replace(task.cluster, devices=devices))
    try:
        found = search(task, simulated(task), effort=EFFORT)
    except PlanError:
        assume(False)
        raise
    check_plan(found.plan, num_devices=len(speeds))
    assert found.plan.batch == task.batch
    assert fixed.keeps(found.plan)
    assert overfull(found.plan, task.profile, task.cluster, each=task.bytes_each) == {}
    assert found.value == simulated(task)(found.plan)
    least = min(each.trial.value for each in found.candidates)
    assert found.value <= HANDICAP * least


@settings(deadline=None, max_examples=6)
@given(SPEEDS, st.integers(0, 99))
def test_no_default_is_better_and_a_search_repeats_itself(speeds: list[float], seed: int):
    task = task_of(speeds, seed, layers=5, batch=8)
    found = search(task, simulated(task), effort=EFFORT)
    assert found == search(task, simulated(task), effort=EFFORT)
    for stages in range(1, len(speeds) + 1):
        default = build(
            task,
            np.arange(stages).reshape(1, stages),
            microbatch=1,
            schedule=ScheduleKind.ONE_F_ONE_B,
            cut=even_partition(num_layers=5, num_stages=stages),
        )
        assert found.value <= simulated(task)(default) * (1 + 1e-12)


def all_plans(task: Task) -> Iterator[Plan]:
    """Yield all plans with equal replicas of a tiny task, without chunks."""
    size = len(task.cluster)
    for stages, replicas in product(range(1, size + 1), repeat=2):
        if stages * replicas > size or task.batch % replicas:
            continue
        share = task.batch // replicas
        edges = combinations(range(1, task.num_layers), stages - 1)
        cuts = [tuple(b - a for a, b in pairwise((0, *e, task.num_layers))) for e in edges]
        sizes = [size for size in (1, 2, 4) if share % size == 0]
        for devices in permutations(range(size), stages * replicas):
            placement = np.array(devices).reshape(replicas, stages)
            for cut, microbatch, kind in product(cuts, sizes, ScheduleKind):
                plan = build(task, placement, microbatch=microbatch, schedule=kind, cut=cut)
                if is_possible(plan):
                    yield plan


@pytest.mark.parametrize("speeds", [[1.0, 1.0], [2.0, 1.0], [1.0, 1.0, 0.5]])
@pytest.mark.parametrize("seed", range(2))
def test_tiny_tasks_are_searched_as_trying_all_plans_does(speeds: list[float], seed: int):
    task = task_of(speeds, seed, layers=3, batch=4)
    value = simulated(task)
    found = search(task, value, effort=Effort(num_changes=200))
    assert found.value <= min(map(value, all_plans(task))) * (1 + 1e-9)


def test_the_cut_counts_the_head():
    # SmolLM2-135M: the head of a vocabulary of 49,152 costs as much as four of the 30 layers.
    profile = profile_of(30)
    head = Part(forward_s=4 / 3, backward_s=8 / 3)
    cluster = cluster_of(1.0, 1.0)
    task = Task(
        cluster=cluster,
        profile=replace(profile, head=head),
        batch=8,
        precision=Precision.FP32,
        fixed=Fixed(stages=2),
    )
    found = search(task, simulated(task), effort=EFFORT)
    assert found.plan.cut == (17, 13)
    by_cut = {each.name: each.trial.value for each in found.of_choice("cut")}
    assert by_cut["even [15, 15]"] > by_cut["by cost [17, 13]"] == found.value
    names = {each.name for each in found.of_choice("schedule")}
    assert {kind.value for kind in ScheduleKind if not kind.facts.takes_chunks} <= names
    # Four stages are not the two that are set.
    assert "interleaved-1f1b, 2 chunks" not in names


def test_the_seconds_end_a_search_whose_objective_is_slow():
    task = task_of([1.0] * 4, 0, layers=5, batch=8)
    now = 0.0

    def slow(plan: Plan) -> float:
        nonlocal now
        now += 1.0
        return simulated(task)(plan)

    effort = Effort(seconds=3.0, num_changes=10**6)
    found = search(task, slow, effort=effort, clock=lambda: now)
    assert found.num_valued <= 4
    check_plan(found.plan, num_devices=4)


@pytest.mark.parametrize(
    ("stages", "batch", "splits", "expected"),
    [
        (1, 8, True, ScheduleKind.ONE_F_ONE_B),  # GPipe is listed first, but keeps everything
        (2, 1, False, ScheduleKind.GPIPE),
        (2, 6, False, ScheduleKind.ONE_F_ONE_B),
        (2, 6, True, ScheduleKind.ZB_H1),
    ],
)
def test_of_equal_schedules_the_simplest_is_taken(
    stages: int, batch: int, splits: bool, expected: ScheduleKind
):
    fixed = Fixed(stages=stages, replicas=1, microbatch=1)
    cluster = without_network(cluster_of(*[1.0] * stages))
    task = replace(task_of([1.0] * stages, 0, layers=2, batch=batch), cluster=cluster, fixed=fixed)
    value = simulated(replace(task, profile=profile_of(2)))

    def of_some(plan: Plan) -> float:
        is_whole = (
            isinstance(plan.schedule, ScheduleKind) and not plan.schedule.facts.splits_backward
        )
        return value(plan) if is_whole or splits else inf

    assert search(task, of_some, effort=EFFORT).plan.schedule is expected


@pytest.mark.parametrize("layer_parameters", [100, 100_000])
def test_replicas_of_one_rank_have_chunks_where_these_hide_an_all_reduce(layer_parameters: int):
    # Activations of 10 MB over links of at most 2 MB/s: no pipeline is worth its messages.
    profile = profile_of(8, layer_parameters=layer_parameters, activation_bytes=10**7)
    task = replace(task_of([1.0, 1.0], 0, layers=8, batch=2), profile=profile)
    value = simulated(task)
    found = search(task, value, effort=EFFORT)
    pieces = [(1, ScheduleKind.ONE_F_ONE_B), *((v, ScheduleKind.INTERLEAVED) for v in (2, 4, 8))]
    values = {
        chunks: value(
            build(task, np.arange(2)[:, None], microbatch=1, schedule=kind, num_chunks=chunks)
        )
        for chunks, kind in pieces
    }
    assert found.plan.num_replicas == 2
    # Gradients of 3 kB or of 3 MB in all, over links of 20 kB/s to 2 MB/s.
    hides_much = layer_parameters > 100
    assert found.value <= min(values.values()) * (1 + 1e-9 if hides_much else HANDICAP)
    assert (found.value < 0.95 * values[1]) == hides_much


@pytest.mark.parametrize("chunks", [None, 1, 2])
def test_a_cut_that_is_set_keeps_its_number_of_stages(chunks: int | None):
    fixed = Fixed(cut=(1, 1, 1, 2), chunks=chunks)
    task = replace(task_of([1.0] * 4, 0, layers=5, batch=8), fixed=fixed)
    found = search(task, simulated(task), effort=EFFORT)
    assert found.plan.cut == fixed.cut
    assert found.plan.num_pipeline_ranks * found.plan.num_chunks == 4
