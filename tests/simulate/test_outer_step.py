"""Simulated outer loops against closed forms: on free compute, and on one slow link each."""

import numpy as np
import pytest

from jaxpipe.collective import CodecKind
from jaxpipe.collective.codec.codecs import bytes_per_value, codec_of
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import default_plan
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.simulate.outer_step import OuterTimes, outer_times
from jaxpipe.topo import Cluster, Device
from tests.plan_section import decided

LATENCY_S, BYTES_PER_S = 0.25, 1e6
LAYER = Part(forward_s=0.01, backward_s=0.02, parameters=500_000)


def cluster(num_devices: int) -> Cluster:
    size = (num_devices, num_devices)
    bandwidth = np.full(size, BYTES_PER_S)
    np.fill_diagonal(bandwidth, np.inf)
    return Cluster(
        name="even",
        devices=tuple(
            Device(name=f"d{n}", host=f"h{n}", region=f"r{n}") for n in range(num_devices)
        ),
        latency_s=LATENCY_S * (1 - np.eye(num_devices)),
        bandwidth_bytes_per_s=bandwidth,
    )


def conditions(num_devices: int) -> Conditions:
    profile = Profile(
        device="none",
        flops_per_s=1.0,
        microbatch=1,
        activation_bytes=0,
        embed=Part(),
        layers=(LAYER,) * 2,
        head=Part(),
    )
    return Conditions(
        cluster=cluster(num_devices),
        profile=profile,
        slow=np.ones(num_devices),
        gradient_bytes=4,
    )


def plan_of(*, stages: int, replicas: int):
    even = cluster(stages * replicas)
    config = decided(cluster="even", stages=stages, replicas=replicas)
    return default_plan(config, even, num_layers=2, batch=replicas, tied=False)


@pytest.mark.parametrize("islands", [2, 4, 8])
@pytest.mark.parametrize("codec", [CodecKind.NONE, CodecKind.INT8])
def test_an_outer_step_is_the_closed_form_of_a_sharded_sum(islands: int, codec: CodecKind):
    outer = OuterConfig(islands=islands, codec=codec)
    plan = plan_of(stages=1, replicas=islands)
    num_bytes = 2 * LAYER.parameters * bytes_per_value(codec)
    # Each link carries an M-th of the bytes twice; two islands swap everything at once. Chunks that
    # follow each other hide a part of the second latency.
    wire_s = 2 / islands * num_bytes / BYTES_PER_S
    found = outer_times(plan, conditions(islands), outer).across_s
    latencies = (1, 1) if islands == 2 else (1, 2)
    assert wire_s + latencies[0] * LATENCY_S <= found * 1.000001
    assert found <= (wire_s + latencies[1] * LATENCY_S) * 1.000001


def test_replicas_of_an_island_share_the_bytes_between_islands():
    outer = OuterConfig(islands=2)
    alone = outer_times(plan_of(stages=1, replicas=2), conditions(2), outer)
    shared = outer_times(plan_of(stages=1, replicas=8), conditions(8), outer)
    num_bytes = 2 * LAYER.parameters * 4
    assert (alone.across_s, alone.within_s) == pytest.approx(
        (num_bytes / BYTES_PER_S + LATENCY_S, 0.0)
    )
    # A quarter of the bytes between islands; then a ring gathers three quarters within each.
    assert shared.across_s == pytest.approx(num_bytes / 4 / BYTES_PER_S + LATENCY_S)
    assert shared.within_s == pytest.approx(3 / 4 * num_bytes / BYTES_PER_S + 3 * LATENCY_S)


def test_all_ranks_meet_at_the_end_of_an_outer_step():
    times = outer_times(plan_of(stages=1, replicas=4), conditions(4), OuterConfig(islands=2))
    # To the root of the tree, on which all others hang, and back.
    assert times.meet_s == pytest.approx(2 * LATENCY_S, rel=1e-3)


def test_inner_steps_have_no_sums_between_islands():
    plan = plan_of(stages=2, replicas=2)
    times = outer_times(plan, conditions(4), OuterConfig(islands=2))
    sums_s = plan_step_s(plan, conditions(4))
    assert times.inner_s < sums_s - 2.0
    one = outer_times(plan, conditions(4), OuterConfig(islands=1))
    assert (one.inner_s, one.across_s) == (sums_s, 0.0)
    assert one.within_s > 0  # replicas gather their slices of the anchor


@pytest.mark.parametrize(
    ("outer", "step_s"),
    [
        ({"every": 10}, 2.0 + 6.0 / 10),
        ({"every": 10, "delay": 2}, 2.0 + 2.0 / 10),
        ({"every": 10, "delay": 3}, 2.0 + 1.0 / 10),
        ({"every": 10, "eager": True}, 2.0 + 1.0 / 10),
        ({"every": 2, "eager": True}, 2.0 + (1.0 + 5.0 - 4.0) / 2),
        ({"every": 10, "fragments": 5, "delay": 0}, 2.0 + 7.0 / 10),
        ({"every": 10, "fragments": 5, "delay": 1}, 2.0 + 2.0 / 10),
    ],
)
def test_a_delay_hides_what_fits_behind_inner_steps(outer: dict, step_s: float):
    times = OuterTimes(inner_s=2.0, across_s=5.0, within_s=0.75, meet_s=0.25)
    assert times.step_s(OuterConfig(islands=2, **outer)) == pytest.approx(step_s)


@pytest.mark.parametrize("kind", [kind for kind in CodecKind if kind is not CodecKind.NONE])
def test_codecs_send_as_many_bytes_as_planned(kind: CodecKind):
    codec, size = codec_of(kind, top_k_fraction=0.05), 256 * 1000
    assert codec is not None
    planned = bytes_per_value(kind, top_k_fraction=0.05) * size
    assert codec.num_bytes(size=size) == pytest.approx(planned)
