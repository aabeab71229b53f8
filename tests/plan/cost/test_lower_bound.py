"""No plan is faster than the lower bound; where a closed form exists, the bound is that."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.plan.cost import Profile, flop_profile, lower_bound, slowness
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task, build
from jaxpipe.search.generators.changes import neighbour
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import Cluster, Host, Precision, Trunk
from tests.plan.models import cluster_of, profile_of
from tests.simulate.uniform import cluster


def bound_of(where: Cluster, profile_layers: int, batch: int, **sizes: int):
    profile = profile_of(profile_layers, **sizes)
    slow = slowness(where, profile, Precision.FP32)
    return lower_bound(where, profile, slow=slow, batch=batch)


def measured_at(profile: Profile, paces: dict[int, float]) -> Profile:
    """Return the profile with layers measured at other sizes, by their seconds per sample."""

    def at(size: int, pace: float) -> Profile:
        larger = profile.scaled(microbatch=size)
        return replace(
            larger,
            embed=larger.embed.scaled(pace),
            layers=tuple(layer.scaled(pace) for layer in larger.layers),
            head=larger.head.scaled(pace),
        )

    return replace(profile, sizes=tuple(at(size, pace) for size, pace in paces.items()))


def in_two_regions(where: Cluster, trunk: float | None) -> Cluster:
    """Return the cluster, its first device in a region of its own, with trunks both ways."""
    if trunk is None:
        return where
    first, *others = where.devices
    devices = (replace(first, region="q"), *others)
    trunks = (("q", "r"), ("r", "q"))
    return replace(
        where,
        devices=devices,
        hosts=tuple(Host(name=each.host, region=each.region) for each in devices),
        trunks=tuple(Trunk(source=a, destination=b, bytes_per_s=trunk) for a, b in trunks),
    )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.25, 4.0), min_size=2, max_size=6),
    st.integers(1, 3),
    st.sampled_from([10, 10_000, 10_000_000]),
    st.sampled_from([10, 100_000]),
    st.none() | st.floats(1e3, 1e6),
    st.dictionaries(st.sampled_from([2, 4]), st.floats(0.3, 2.0)),
    st.integers(0, 999),
)
def test_no_plan_is_faster(
    tflops: list[float],
    replicas: int,
    layer_parameters: int,
    activation_bytes: int,
    trunk: float | None,
    paces: dict[int, float],
    seed: int,
):
    where = in_two_regions(cluster_of(*tflops, seed=seed), trunk)
    profile = profile_of(4, layer_parameters=layer_parameters, activation_bytes=activation_bytes)
    profile = measured_at(profile, paces)
    replicas = min(replicas, len(where))
    stages = min(4, len(where) // replicas)
    task = Task(cluster=where, profile=profile, batch=4 * replicas, precision=Precision.FP32)
    random = np.random.default_rng(seed)
    placement = random.permutation(len(where))[: stages * replicas].reshape(replicas, stages)
    plan = build(task, placement, microbatch=2, schedule=ScheduleKind.ONE_F_ONE_B)
    plan = neighbour(task, plan, random=random)
    conditions = Conditions(cluster=where, profile=profile, slow=task.slow, gradient_bytes=4)
    found = lower_bound(where, profile, slow=task.slow, batch=task.batch)
    assert found.seconds <= plan_step_s(plan, conditions) * (1 + 1e-9)


def test_without_a_network_the_bound_is_the_work_over_all_speeds():
    where = cluster_of(1.0, 3.0)
    where = replace(
        where,
        latency_s=np.zeros((2, 2)),
        bandwidth_bytes_per_s=np.full((2, 2), np.inf),
        alone_bytes_per_s=np.full((2, 2), np.inf),
    )
    found = bound_of(where, 4, 8)
    # A second for each layer and sample; four times the speed.
    assert found.compute_s == pytest.approx(4 * 8 / 4)
    assert found.seconds == found.compute_s


def test_links_between_regions_carry_no_more_than_their_trunk():
    # Gradients of nearly nothing, and activations that fill the trunk: both sides work on all.
    where = cluster_of(1.0, 1.0, 1.0)
    wide, narrow = (in_two_regions(where, trunk) for trunk in (1e12, 1.0))
    sizes = {"layer_parameters": 10**7, "activation_bytes": 10**7}
    assert bound_of(wide, 4, 8, **sizes) == bound_of(where, 4, 8, **sizes)
    # Nothing crosses: two devices do the work of three.
    assert bound_of(narrow, 4, 8, **sizes).cut_s == pytest.approx(
        bound_of(where, 4, 8).compute_s * 3 / 2, rel=1e-6
    )


def test_a_link_that_carries_nothing_leaves_the_faster_side():
    where = cluster(2, latency_s=0.0, bytes_per_s=1e-3)
    profile = profile_of(4, layer_parameters=1000, activation_bytes=1000)
    found = lower_bound(where, profile, slow=np.array([1.0, 0.5]), batch=8)
    assert found.compute_s == pytest.approx(32 / 3)
    assert found.cut_s == pytest.approx(32 / 2, rel=1e-3)


def test_gradients_cross_for_the_work_of_the_other_side():
    # Twice the work of a layer for the second; both on each of two equal devices.
    profile = profile_of(2, layer_parameters=100, activation_bytes=10**9)
    where = cluster(2, latency_s=0.0, bytes_per_s=100.0)
    found = lower_bound(where, profile, slow=np.ones(2), batch=8)
    # T = g(16 - T) / 100 with g(w) = 800 w / 16: 100 T = 50 (16 - T).
    assert found.cut_s == pytest.approx(800 / 150)
    assert found.compute_s == pytest.approx(8.0)


def test_activations_are_the_other_way():
    profile = flop_profile(
        num_layers=2,
        layer_flop=1e12 / 3,
        layer_parameters=10**9,
        layer_kept_bytes=0,
        activation_bytes=100,
        flops_per_s=1e12,
    )
    where = cluster(2, latency_s=0.0, bytes_per_s=10.0)
    found = lower_bound(where, profile, slow=np.ones(2), batch=1)
    assert found.cut_s == pytest.approx(2.0)  # 10 s for the activations, but 2 s on one device
