"""The closed form of a step against the ideal timetable, and its terms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.plan import Pipeline, Plan
from jaxpipe.plan.cost import estimate, slowness
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.schedule import ScheduleKind, timetable
from jaxpipe.search import Task, build
from jaxpipe.topo import without_network
from jaxpipe.topo.gpu import Precision
from tests.plan.models import cluster_of, profile_of


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B]),
)
def test_equal_stages_without_messages_take_what_the_timetable_says(
    stages: int, microbatches: int, schedule: ScheduleKind
):
    cluster = cluster_of(*[1.0] * stages)
    cluster.latency_s[:] = 0.0
    profile = profile_of(2 * stages, activation_bytes=0)
    task = Task(cluster=cluster, profile=profile, batch=microbatches)
    plan = build(task, np.arange(stages)[None], microbatch=1, schedule=schedule)
    part = profile.stage(plan.cut, 0)
    ideal = timetable(
        plan.compute_schedule(),
        forward_s=(part.forward_s,) * stages,
        backward_s=(part.backward_s,) * stages,
    )
    assert estimate(plan, cluster, profile, slow=task.slow).step_s == pytest.approx(
        ideal.makespan_s
    )


def test_devices_slow_down_their_stage_and_links_fill_and_sync():
    cluster = cluster_of(1.0, 0.5, 1.0, 1.0)
    profile = profile_of(2)
    slow = slowness(cluster, profile, Precision.FP16)
    assert slow.tolist() == [1.0, 2.0, 1.0, 1.0]
    task = Task(cluster=cluster, profile=profile, batch=8)
    placement = np.array([[0, 1], [2, 3]])
    plan = build(task, placement, microbatch=2, schedule=ScheduleKind.GPIPE, cut=(1, 1))
    found = estimate(plan, cluster, profile, slow=slow)
    hops = [
        cluster.latency_s[a, b] + 2 * 1000 / cluster.bandwidth_bytes_per_s[a, b]
        for a, b in ((0, 1), (1, 0))
    ]
    assert found.fill_s == pytest.approx(2 * (1 + 2) + sum(hops))
    assert found.steady_s == pytest.approx(2 * 2 * 1)
    syncs = [
        2 * (cluster.latency_s[a, b] + 400 / cluster.bandwidth_bytes_per_s[a, b])
        for a, b in ((0, 2), (1, 3))
    ]
    assert found.sync_s == pytest.approx(max(syncs))
    assert found.update_s == 0
    assert found.step_s == found.fill_s + found.steady_s + found.sync_s
    layers = tuple(replace(layer, update_s=0.25) for layer in profile.layers)
    updated = estimate(plan, cluster, replace(profile, layers=layers), slow=slow)
    assert updated == replace(found, update_s=0.5)  # of the slow device
    assert updated.step_s == found.step_s + 0.5


def test_a_device_of_unknown_speed_is_like_the_profiled_one():
    cluster = cluster_of(1.0)
    unknown = [type(d)(name=d.name, host=d.host, region=d.region) for d in cluster.devices]
    bare = type(cluster)(
        name="bare",
        devices=tuple(unknown),
        latency_s=cluster.latency_s,
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s,
    )
    assert slowness(bare, profile_of(1), Precision.FP16).tolist() == [1.0]


def test_unlike_replicas_are_as_slow_as_the_slowest():
    cluster = without_network(cluster_of(1.0, 1.0, 1.0))
    pipelines = (
        Pipeline(devices=(0, 1), cut=(2, 2), num_microbatches=5),
        Pipeline(devices=(2,), cut=(4,), num_microbatches=3),
    )
    plan = Plan(pipelines=pipelines, schedule=ScheduleKind.ONE_F_ONE_B, tied=False)
    plan = with_island_trees(plan, cluster.devices)
    profile = profile_of(4, layer_parameters=0, activation_bytes=0)
    found = estimate(plan, cluster, profile, slow=np.ones(3))
    # Layers take a second: 2 x 2 + 4 x 2 = 12 of the first, 3 x 4 = 12 of the second.
    assert found.step_s == pytest.approx(12.0)
    fewer = replace(plan, pipelines=(pipelines[0], replace(pipelines[1], num_microbatches=4)))
    assert estimate(fewer, cluster, profile, slow=np.ones(3)).step_s == pytest.approx(16.0)


def test_chunks_of_a_rank_take_their_time_one_after_the_other():
    cluster = without_network(cluster_of(1.0, 1.0))
    pipeline = Pipeline(devices=(0, 1), cut=(1, 1, 1, 1), num_microbatches=3)
    plan = Plan(pipelines=(pipeline,), schedule=ScheduleKind.INTERLEAVED, tied=False, num_chunks=2)
    plan = with_island_trees(plan, cluster.devices)
    profile = profile_of(4, layer_parameters=0, activation_bytes=0)
    found = estimate(plan, cluster, profile, slow=np.ones(2))
    assert found.fill_s == pytest.approx(4.0)
    assert found.steady_s == pytest.approx(2 * 2.0)
