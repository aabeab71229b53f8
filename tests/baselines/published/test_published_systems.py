"""The published systems as jobs: what they do, and that they keep to what was measured."""

from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.baselines.published.dtfm import along, dtfm_phases, dtfm_step, scheduled, unscheduled
from jaxpipe.baselines.published.published_systems import num_devices_used, system_step
from jaxpipe.baselines.published.step_time import step_time
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.systems import System, Way, systems_with
from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.schedule import Op, gpipe, lower
from jaxpipe.simulate import (
    Constants,
    NetworkConstants,
    Speeds,
    dtfm_constants,
    simulate,
    simulate_ends,
    step_seconds,
)
from jaxpipe.simulate.step_seconds import barrier_ends_s
from jaxpipe.topo.gpu import Precision
from jaxpipe.trace import Lane

pytestmark = pytest.mark.slow

SMALL = Workload(num_layers=8, batch=64)


def seconds(system: System, cluster: str, workload: Workload) -> float:
    """Return the simulated seconds of a step."""
    job = system_step(
        system, topo.load(cluster), workload=workload, constants=dtfm_constants(), seed=2022
    )
    return step_time(simulate(job), workload).seconds


@pytest.mark.parametrize("system", [System.DTFM, System.MEGATRON_P8, System.ZERO3])
def test_the_ends_of_a_step_are_those_of_its_trace(system: System):
    job = system_step(
        system,
        topo.load("case4-regional"),
        workload=Workload(num_layers=8, batch=512),
        constants=dtfm_constants(),
        seed=2022,
    )
    trace, ends = simulate(job), simulate_ends(job)
    assert ends.seconds == step_seconds(trace)
    assert ends.last_s == max(span.end_s for span in trace.spans)
    assert len(ends.barriers_s) == len(barrier_ends_s(trace))


def test_the_phases_of_dtfm_are_its_schedule_in_parts():
    phases = dtfm_phases(num_stages=3, num_replicas=2, num_microbatches=64)
    whole = lower(gpipe(num_stages=3, num_microbatches=64), tied=False, num_replicas=2)
    joined = tuple(sum((phase.schedule[stage] for phase in phases), ()) for stage in range(3))
    assert joined == whole
    assert [phase.meets for phase in phases] == [True, True, False, True]


@pytest.mark.parametrize(
    ("num_microbatches", "forwards"), [(1, [1]), (64, [64]), (65, [64, 1]), (192, [64, 64, 64])]
)
def test_dtfm_accumulates_over_steps_of_64_microbatches(num_microbatches: int, forwards: list[int]):
    phases = dtfm_phases(num_stages=2, num_replicas=1, num_microbatches=num_microbatches)
    counts = [sum(each.op is Op.FORWARD for each in phase.schedule[0]) for phase in phases]
    assert [count for count in counts if count] == forwards


def test_with_the_scheduler_pipelines_stay_in_regions_and_spot_hosts_stand_in_launch_order():
    case5 = topo.load("case5-worldwide")
    regions = [{case5.devices[d].region for d in row} for row in scheduled(case5, batch=1024)]
    assert all(len(each) == 1 for each in regions)
    case2 = topo.load("case2-spot")
    hosts = [case2.devices[device].host for device in scheduled(case2, batch=1024)[0]]
    assert [hosts.count(host) for host in dict.fromkeys(hosts)] == [1, 1, 1, 1, 4]


@pytest.mark.parametrize("seed", [2022, 2023])
def test_without_the_scheduler_every_device_has_a_rank_and_device_0_is_rank_0(seed: int):
    placement = unscheduled(topo.load("case3-universities"), batch=1024, seed=seed)
    assert sorted(device for row in placement for device in row) == list(range(64))
    assert placement[0][0] == 0


def test_what_does_not_divide_the_batch_is_left_out_and_every_region_keeps_a_pipeline():
    cluster = topo.load("fluidstack-3region")
    rows = scheduled(cluster, batch=1024)
    assert len(rows) == 4
    assert {cluster.devices[row[0]].region for row in rows} == {"east", "middle", "west"}


@pytest.mark.parametrize("system", systems_with(Way.SIMULATE))
def test_the_breakdown_adds_up_to_the_step(system: System):
    cluster = topo.load("homogeneous:hosts=16,devices=4,delay_ms=1,bandwidth_gbps=10")
    workload = Workload(num_layers=16, batch=256)
    trace = simulate(
        system_step(system, cluster, workload=workload, constants=dtfm_constants(), seed=1)
    )
    step = step_time(trace, workload)
    assert sum(step.breakdown.values()) == pytest.approx(step.seconds)
    assert all(each >= -1e-9 for each in step.breakdown.values())
    assert step.pflops == pytest.approx(workload.step_flop / step.seconds / 1e15)
    computes = [s for s in trace.spans if s.lane is Lane.COMPUTE]
    assert step.breakdown["compute"] * len(trace.rank_names) == pytest.approx(
        sum(s.end_s - s.start_s for s in computes),
        rel=1e-3,  # some ranks leave the first barrier before rank 0, whose clock counts
    )


# Published: DT-FM, NeurIPS 2022; cells on which all seeds agree within a percent or two.
PUBLISHED = [
    (System.DTFM, "case1-datacenter", 24, 10.14),
    (System.DTFM, "case2-spot", 24, 12.35),
    (System.DTFM, "case3-universities", 32, 22.11),
    (System.DTFM_UNSCHEDULED, "case3-universities", 24, 27.8),
]


@pytest.mark.parametrize(("system", "cluster", "layers", "published_s"), PUBLISHED)
def test_simulations_keep_within_a_tenth_of_what_was_measured(
    system: System, cluster: str, layers: int, published_s: float
):
    simulated_s = seconds(system, cluster, Workload(num_layers=layers, batch=1024))
    assert simulated_s == pytest.approx(published_s, rel=0.1)


def test_our_plan_is_faster_than_dtfm_with_its_scheduler():
    workload = Workload(num_layers=24, batch=512)
    ours, theirs = (
        seconds(system, "case4-regional", workload) for system in (System.JAXPIPE, System.DTFM)
    )
    assert ours < theirs


def test_gradients_of_far_replicas_take_two_passes_over_the_slowest_link():
    # 4 replicas of one stage of 2 layers in fp32, at 1 Gbps: 657 MB there and back.
    cluster = topo.load("homogeneous:hosts=4,delay_ms=10,bandwidth_gbps=1")
    workload = Workload(num_layers=2, batch=4, precision=Precision.FP32)
    job = dtfm_step(
        cluster,
        scheduled(cluster, batch=4, num_stages=1),
        workload=workload,
        constants=dtfm_constants(),
        all_reduce=along(AllReduceKind.CENTRAL),
    )
    reduce_s = max(s.end_s - s.start_s for s in simulate(job).spans if s.name == "reduce stage")
    assert reduce_s == pytest.approx(2 * (657_300_000 / 125e6 + 0.01), rel=1e-3)


def test_a_stage_whose_messages_stay_inside_its_host_is_faster():
    constants = Constants(
        fp16=Speeds(local_fraction=0.5, remote_fraction=0.25),
        fp32=Speeds(local_fraction=0.5, remote_fraction=0.5),
        network=NetworkConstants(
            message_overhead_s=0.0,
            flow_bytes_per_s=1e9,
            host_bytes_per_s=1e9,
            nic_efficiency=1.0,
            restart_bytes=1e6,
            largest_window_bytes=1e8,
            eager_bytes=4e6,
            ring_round_s=0.0,
        ),
    )
    cluster = topo.load("homogeneous:hosts=2,devices=4")
    job = dtfm_step(cluster, ((0, 1, 2, 3, 4, 5, 6, 7),), workload=SMALL, constants=constants)
    local_s = SMALL.layer_forward_flop / (0.5 * 125e12)
    expected = [local_s * (2 if stage in (3, 4) else 1) for stage in range(8)]
    assert job.forward_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("system", "cluster", "batch", "words"),
    [
        (System.DTFM, "homogeneous:hosts=4", 64, r"has 4 devices for 8 stages"),
        (System.MEGATRON_P4T2, "homogeneous:hosts=4", 64, r"`batch` .* and 4 devices must"),
        (
            System.ZERO3,
            "homogeneous:hosts=8",
            33,
            r"`batch` \(33\) must be a multiple of .* 8 devices",
        ),
        (System.DTFM, "laptop", 64, r"device 'here-0:0' has no known speed"),
    ],
)
def test_what_does_not_fit_is_refused(system: System, cluster: str, batch: int, words: str):
    with pytest.raises(PlanError, match=words):
        seconds(system, cluster, Workload(num_layers=8, batch=batch))


@pytest.mark.parametrize(
    "system", [System.DTFM, System.MEGATRON_P8, System.MEGATRON_P4T2, System.ZERO3]
)
def test_of_48_devices_those_train_that_share_the_batch_evenly(system: System):
    cluster = topo.load("fluidstack-3region")
    job = system_step(
        system,
        cluster,
        workload=Workload(num_layers=24, batch=1024),
        constants=dtfm_constants(),
    )
    assert len(cluster) == 48
    assert num_devices_used(system, job) == 32


def test_all_devices_train_where_they_share_the_batch_evenly():
    cluster = topo.load("homogeneous:hosts=24,delay_ms=1,bandwidth_gbps=10")
    workload = Workload(num_layers=8, batch=96)
    for system in (System.MEGATRON_P8, System.MEGATRON_T8, System.ZERO3):
        job = system_step(system, cluster, workload=workload, constants=dtfm_constants())
        assert num_devices_used(system, job) == 24, system


def test_a_workload_has_layers_and_samples():
    with pytest.raises(ConfigError, match=r"`batch` must be at least 1, not 0"):
        Workload(num_layers=8, batch=0)


def test_a_cluster_outside_aws_has_its_own_connections():
    constants = dtfm_constants()
    assert constants.on(topo.load("case4-regional")) is constants
    own = constants.on(topo.load("fluidstack-2region")).network
    assert own.restart_bytes == 10 * 1448
    # Of the default buffer of 6 MiB between a half and all is usable.
    assert 3 * 2**20 <= own.largest_window_bytes <= 6 * 2**20
    assert own.message_overhead_s == constants.network.message_overhead_s
    slow, fast = (
        step_seconds(simulate(system_step(System.DTFM, cluster, workload=SMALL, constants=each)))
        for cluster in [topo.load("fluidstack-2region")]
        for each in (constants, replace(constants, connections={}))
    )
    assert slow > fast
