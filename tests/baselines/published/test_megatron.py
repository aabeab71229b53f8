"""Megatron's steps, held against closed forms."""

import pytest

from jaxpipe import topo
from jaxpipe.baselines.published.megatron import MegatronLayout
from jaxpipe.baselines.published.pipeline_memory import peak_bytes
from jaxpipe.baselines.published.published_systems import system_peak_bytes, system_step
from jaxpipe.baselines.published.rings import all_gather_s
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.systems import System
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.simulate import dtfm_constants
from jaxpipe.topo.gpu import Precision

HOST = "case1-datacenter:hosts=1"
FP32 = Precision.FP32


def forward_s(system: System, workload: Workload, cluster: str = HOST) -> float:
    """Return the seconds of the first rank's forward."""
    where = topo.load(cluster)
    return system_step(system, where, workload=workload, constants=dtfm_constants()).forward_s[0]


@pytest.mark.parametrize(
    ("system", "tensor", "stages", "rings"),
    [
        (System.MEGATRON_P4T2, 2, 4, 1),
        (System.MEGATRON_P2T4, 4, 2, 3),
        (System.MEGATRON_T8, 8, 1, 6),
    ],
)
def test_a_forward_has_two_all_reduces_per_layer(
    system: System, tensor: int, stages: int, rings: int
):
    workload = Workload(num_layers=24, batch=64, precision=FP32, microbatch=4)
    constants = dtfm_constants()
    layers = 24 // stages
    compute_s = 4 * layers * workload.layer_forward_flop / tensor
    compute_s /= 15.7e12 * constants.fp32.local_fraction
    # 2 (T - 1) rounds of a T-th of the bytes, over rings of 20 GB/s each.
    round_s = constants.network.ring_round_s + 4 * 16_777_216 / tensor / (rings * 20e9)
    expected = compute_s + layers * 2 * 2 * (tensor - 1) * round_s
    assert forward_s(system, workload) == pytest.approx(expected, rel=1e-6)


def test_a_backward_without_recomputation_has_two_thirds_of_the_seconds():
    constants, cluster = dtfm_constants(), topo.load(HOST)
    whole, less = (
        system_step(
            System.MEGATRON_T8,
            cluster,
            workload=Workload(num_layers=24, batch=64, recompute=recompute),
            constants=constants,
        )
        for recompute in (True, False)
    )
    # All-reduces: 4 with recomputation, 2 without; computes: 3 forwards, or 2.
    assert less.forward_s == whole.forward_s
    one_s = whole.forward_s[0]
    saved_s = whole.backward_s[0] - less.backward_s[0]
    assert saved_s == pytest.approx(one_s)


def test_groups_over_several_hosts_use_the_slow_links():
    workload = Workload(num_layers=24, batch=64)
    cluster = topo.load("homogeneous:hosts=8,delay_ms=1,bandwidth_gbps=1")
    ring_s = all_gather_s(cluster, [range(8)], workload.activation_bytes / 8, nic_efficiency=1.0)
    seconds = forward_s(
        System.MEGATRON_T8, workload, "homogeneous:hosts=8,delay_ms=1,bandwidth_gbps=1"
    )
    flop_s = 24 * workload.layer_forward_flop / 8
    flop_s /= 125e12 * dtfm_constants().fp16.remote_fraction
    assert seconds == pytest.approx(flop_s + 24 * 2 * 2 * ring_s)


def test_a_batch_that_microbatches_do_not_divide_is_refused():
    with pytest.raises(PlanError, match=r"`batch` .12., `microbatch` .8. and"):
        forward_s(System.MEGATRON_P8, Workload(num_layers=8, batch=12, microbatch=8))


def test_microbatches_of_other_systems_are_refused():
    with pytest.raises(PlanError, match=r"`microbatch` must be 1, .* not 2"):
        forward_s(System.DTFM, Workload(num_layers=8, batch=64, microbatch=2))


def test_a_microbatch_has_a_sample():
    with pytest.raises(ConfigError, match="`microbatch` must be at least 1, not 0"):
        Workload(num_layers=8, batch=64, microbatch=0)


def test_kept_activations_grow_with_the_microbatches_in_flight():
    split = MegatronLayout(stages=8, tensor=1)
    one, two = (
        peak_bytes(
            split,
            Workload(num_layers=24, batch=64, microbatch=size, recompute=False),
            num_replicas=1,
        )
        for size in (1, 2)
    )
    # 8 microbatches of 3 layers: sbh (34 + 5 a s / h) bytes for each.
    layer_bytes = 2048 * 2048 * (34 + 5 * 16)
    assert two - one == pytest.approx(8 * 3 * layer_bytes)


@pytest.mark.parametrize(
    ("system", "workload", "fits"),
    [
        (System.MEGATRON_P8, Workload(num_layers=24, batch=64, precision=FP32), True),
        (
            System.MEGATRON_P8,
            Workload(num_layers=24, batch=64, precision=FP32, microbatch=8),
            False,
        ),
        (
            System.PYTORCH_PIPE,
            Workload(num_layers=24, batch=64, precision=FP32, microbatch=2),
            True,
        ),
        (
            System.PYTORCH_PIPE,
            Workload(num_layers=24, batch=64, precision=FP32, microbatch=4),
            False,
        ),
    ],
)
def test_runs_that_were_out_of_memory_do_not_fit(system: System, workload: Workload, fits: bool):
    needed = system_peak_bytes(system, topo.load(HOST), workload=workload)
    assert needed is not None
    assert (needed <= 16 * 2**30) == fits


def test_dtfm_has_no_model_of_memory():
    workload = Workload(num_layers=24, batch=64)
    assert system_peak_bytes(System.DTFM, topo.load(HOST), workload=workload) is None
