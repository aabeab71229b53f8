"""The plan after a loss or a join, against every candidate of small clusters."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.plan import Pipeline, Plan, check_plan
from jaxpipe.plan.cost import BytesPerParameter, overfull
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.remaining import Future, Remaining, candidates, choose
from jaxpipe.search.remaining.choose import value
from jaxpipe.topo import Cluster, without_network
from tests.plan.models import cluster_of, profile_of

LAYERS = 4
EACH = BytesPerParameter()


def running_plan(stages: int, replicas: int, cluster: Cluster, *, microbatches: int) -> Plan:
    cut = tuple(len(part) for part in np.array_split(range(LAYERS), stages))
    devices = np.arange(stages * replicas).reshape(replicas, stages).tolist()
    pipelines = tuple(
        Pipeline(devices=tuple(row), cut=cut, num_microbatches=microbatches // replicas)
        for row in devices
    )
    plan = Plan(pipelines=pipelines, schedule=ScheduleKind.ONE_F_ONE_B, tied=False)
    return with_island_trees(plan, cluster.devices)


def situation(
    stages: int,
    replicas: int,
    *,
    gone: tuple[int, ...],
    parameters: int = 100,
    num_steps: int = 100,
    microbatches: int = 12,
) -> tuple[Remaining, Future]:
    """Return a running plan on devices of the same speed, of which some are gone."""
    count = stages * replicas
    cluster = cluster_of(*[1.0] * count, seed=count)
    remaining = Remaining(
        running=running_plan(stages, replicas, cluster, microbatches=microbatches),
        devices=tuple(device for device in range(count) if device not in gone),
        profile=profile_of(LAYERS, layer_parameters=parameters),
        slow=np.ones(count),
    )
    return remaining, Future(cluster=cluster, each=EACH, num_steps=num_steps, moves=True)


def with_memory(future: Future, num_bytes: int) -> Future:
    devices = tuple(replace(each, memory_bytes=num_bytes) for each in future.cluster.devices)
    return replace(future, cluster=replace(future.cluster, devices=devices))


def accepted(plan: Plan) -> bool:
    return True


def built(remaining: Remaining, future: Future) -> list[Plan]:
    """Return the plans of all candidates."""
    return [
        with_island_trees(replace(remaining.running, pipelines=each), future.cluster.devices)
        for each in candidates(remaining)
    ]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(1, 3), (2, 2), (2, 3), (3, 2), (4, 2)]),
    st.data(),
    st.sampled_from([1, 100, 100_000]),
    st.sampled_from([1, 10, 1000]),
)
def test_nothing_beats_the_choice(
    size: tuple[int, int], data: st.DataObject, parameters: int, num_steps: int
):
    count = size[0] * size[1]
    gone = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    remaining, future = situation(
        *size, gone=tuple(gone), parameters=parameters, num_steps=num_steps
    )
    future = with_memory(future, 10**9)
    found = choose(remaining, future, candidates(remaining), accepted)
    assert found is not None
    check_plan(found.plan, num_devices=count)
    assert found.plan.batch == remaining.running.batch
    assert set(found.plan.groups) <= {(device,) for device in remaining.devices}
    costs = [value(plan, remaining, future).cost_s for plan in built(remaining, future)]
    assert found.cost_s == min(costs)


@pytest.mark.parametrize(("num_steps", "keeps"), [(1, True), (10, False)])
def test_a_small_gain_does_not_move_the_state(num_steps: int, keeps: bool):
    # Three replicas of two stages lose a device: four can keep what they hold, all five are faster.
    remaining, future = situation(
        2, 3, gone=(5,), parameters=100_000, num_steps=num_steps, microbatches=32
    )
    found = choose(remaining, with_memory(future, 10**12), candidates(remaining), accepted)
    assert found is not None
    kept = tuple(each.devices for each in found.plan.pipelines) == ((0, 1), (2, 3))
    assert kept == keeps
    assert (found.moving_s == 0.0) == keeps


def test_a_gain_within_the_doubt_moves_nothing():
    remaining, future = situation(2, 3, gone=(5,), num_steps=10**6)
    found = choose(remaining, future, candidates(remaining), accepted)
    assert found is not None
    assert found.moving_s == 0.0


def test_devices_that_are_back_fill_the_holes():
    remaining, future = situation(2, 3, gone=(3,))
    cluster = without_network(cluster_of(*[1.0] * 7))
    # Device 6 takes the place of device 3.
    joined = replace(remaining, devices=(*remaining.devices, 6), slow=np.ones(7))
    found = choose(joined, replace(future, cluster=cluster), candidates(joined), accepted)
    assert found is not None
    assert {each.devices for each in found.plan.pipelines} == {(0, 1), (2, 6), (4, 5)}


def test_broken_pipelines_mend_each_other():
    remaining, _ = situation(2, 3, gone=(1, 2))
    rows = {tuple(each.devices for each in pipelines) for pipelines in candidates(remaining)}
    assert ((4, 5), (0, 3)) in rows
    assert ((4, 5),) in rows


def test_memory_that_is_unknown_holds_no_more_than_before():
    remaining, future = situation(2, 2, gone=(3,), num_steps=1000)
    found = choose(remaining, future, candidates(remaining), accepted)
    assert found is not None
    assert max(max(each.cut) for each in found.plan.pipelines) == 2
    known = choose(remaining, with_memory(future, 10**9), candidates(remaining), accepted)
    assert known is not None
    assert known.step_s < found.step_s
    assert max(max(each.cut) for each in known.plan.pipelines) > 2


def test_a_plan_fits_into_memory():
    remaining, future = situation(2, 2, gone=(3,), parameters=1000)
    small = with_memory(future, 40_000)  # two layers, and some activations
    found = choose(remaining, small, candidates(remaining), accepted)
    assert found is not None
    assert not overfull(found.plan, remaining.profile, small.cluster, each=EACH)
    assert choose(remaining, with_memory(future, 1000), candidates(remaining), accepted) is None


def test_what_is_refused_is_not_chosen():
    remaining, future = situation(2, 3, gone=(5,))
    best = choose(remaining, future, candidates(remaining), accepted)
    assert best is not None
    other = choose(remaining, future, candidates(remaining), lambda plan: plan != best.plan)
    assert other is not None
    assert other.cost_s >= best.cost_s
    assert choose(remaining, future, candidates(remaining), lambda _: False) is None


def test_a_state_from_a_checkpoint_does_not_move():
    # Both holders of the last two layers are lost.
    remaining, future = situation(2, 2, gone=(1, 3))
    found = choose(remaining, future, candidates(remaining), accepted)
    assert found is not None
    assert found.moving_s == 0.0
    assert found.plan.num_ranks == 2
