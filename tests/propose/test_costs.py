"""What the planner is told of a model and of its devices."""

from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.errors import ConfigError
from jaxpipe.models import (
    GptConfig,
    load_preset,
    num_parameters,
    train_flops_per_token,
)
from jaxpipe.propose.costed import costed
from jaxpipe.propose.device_speeds import precision_of, with_speeds
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.schedule import Remat
from jaxpipe.simulate import dtfm_constants
from jaxpipe.topo.gpu import Precision
from tests.oracles.llamas import PLAIN

GPT2 = GptConfig(**load_preset("gpt2"))


@pytest.mark.parametrize("tied", [False, True])
def test_a_profile_has_all_parameters_and_flops(tied: bool):
    config = GptConfig(num_layers=3, dim=64, num_heads=4, sequence=32, vocabulary=100, tied=tied)
    profile = gpt_profile(config, remat=Remat.NONE, flops_per_s=1.0)
    whole = profile.stage((3,), 0)
    assert whole.parameters == num_parameters(config, layers=3, embed=True, head=True)
    trained = train_flops_per_token(config, sequence=32) * 32
    scores_again = 3 * 2 * 32**2 * 64
    assert whole.forward_s + whole.backward_s == pytest.approx(trained + scores_again, rel=1e-3)


@pytest.mark.parametrize("preset", ["gpt-moe-tiny", "bert-sgmoe", "vit-switch"])
def test_a_pair_with_experts_is_one_layer_of_the_profile(preset: str):
    config = GptConfig(**load_preset(preset))
    profile = gpt_profile(config, remat=Remat.FULL, flops_per_s=1.0)
    count = config.num_layers
    assert len(profile.layers) == count
    whole = profile.stage((count,), 0)
    assert whole.parameters == num_parameters(config, layers=count, embed=True, head=True)
    trained = train_flops_per_token(config, sequence=config.sequence) * config.sequence
    assert whole.forward_s == pytest.approx(trained / 3, rel=1e-3)
    # The forward is computed again, but for its last product.
    assert 2.7 < whole.backward_s / whole.forward_s < 3.0


def test_layers_of_a_profile_differ_as_their_windows_do():
    config = replace(PLAIN, num_layers=4, sequence=64, window=4, full_layers=(1, 3))
    profile = gpt_profile(config, remat=Remat.NONE, flops_per_s=1.0)
    local, full, *_ = profile.layers
    assert profile.layers == (local, full) * 2
    assert full.forward_s - local.forward_s == 64 * 4 * config.query_width * (64 - 4)
    whole = profile.stage((4,), 0)
    assert train_flops_per_token(config, sequence=64) * 64 == pytest.approx(3 * whole.forward_s)


def test_rematerialisation_trades_seconds_for_bytes():
    kept, again = (
        gpt_profile(GPT2, remat=remat, flops_per_s=1e12).layers[0]
        for remat in (Remat.NONE, Remat.FULL)
    )
    assert again.backward_s > kept.backward_s
    assert again.kept_bytes < kept.kept_bytes / 10


def test_a_parameter_takes_four_times_its_format():
    each = bytes_each(GPT2)
    assert (each.parameter, each.gradient, each.optimizer) == (4, 4, 8)
    assert bytes_each(GPT2, OptimizerConfig(sharded=True)).shards_optimizer


@pytest.mark.parametrize(
    ("preset", "cluster", "precision"),
    [
        ("gpt2", "case5-worldwide", Precision.FP32),
        ("gpt-xl-24", "case5-worldwide", Precision.FP16),
        ("gpt-xl-24", "fluidstack-2region", Precision.BF16),
    ],
)
def test_the_precision_is_one_that_all_gpus_have(preset: str, cluster: str, precision: Precision):
    assert precision_of(GptConfig(**load_preset(preset)), topo.load(cluster)) is precision


@pytest.mark.parametrize(
    ("gpu", "matmul_precision", "precision"),
    [
        ("A100-80GB", MatmulPrecision.TF32, Precision.TF32),
        ("A100-80GB", MatmulPrecision.FLOAT32, Precision.FP32),
        ("T4", MatmulPrecision.TF32, Precision.FP32),
    ],
)
def test_products_of_float32_are_in_tf32_where_the_run_and_the_gpu_have_it(
    gpu: str, matmul_precision: MatmulPrecision, precision: Precision
):
    cluster = topo.load(f"homogeneous:gpu={gpu}")
    assert precision_of(GPT2, cluster, matmul_precision=matmul_precision) is precision


def test_of_an_a100_and_an_a40_the_a100_is_faster_in_tf32():
    fast, slow = (topo.load(f"homogeneous:hosts=1,gpu={gpu}") for gpu in ("A100-40GB", "A40"))
    fraction = dtfm_constants().fp16.remote_fraction
    for matmul_precision, is_faster in (
        (MatmulPrecision.TF32, True),
        (MatmulPrecision.FLOAT32, False),
    ):
        speeds = [
            costed(
                GPT2,
                cluster,
                remat=Remat.NONE,
                profile=None,
                tflops=None,
                matmul_precision=matmul_precision,
            ).profile.flops_per_s
            for cluster in (fast, slow)
        ]
        assert (speeds[0] > speeds[1]) == is_faster
        if is_faster:
            assert speeds == pytest.approx([fraction * 156e12, fraction * 74.8e12])


def test_a_gpu_without_tf32_computes_in_float32_next_to_one_that_has_it():
    mixed = topo.load("homogeneous:hosts=2,devices=1,gpu=V100-SXM2")
    kinds = (topo.gpu("V100-SXM2"), topo.gpu("H100"))
    devices = tuple(replace(d, gpu=g) for d, g in zip(mixed.devices, kinds, strict=True))
    known = with_speeds(
        replace(mixed, devices=devices),
        Precision.TF32,
        fraction=0.25,
        float32_fraction=0.5,
        unknown_flops_per_s=None,
    )
    speeds = [device.effective_flops_per_s for device in known.devices]
    assert speeds == pytest.approx([0.5 * 15.7e12, 0.25 * 494.7e12])


def test_a_described_gpu_reaches_a_part_of_its_own_peak():
    cluster = topo.load("laptop")
    devices = tuple(replace(each, peak_flops_per_s=80e12) for each in cluster.devices)
    known = with_speeds(
        replace(cluster, devices=devices), Precision.TF32, fraction=0.25, unknown_flops_per_s=None
    )
    assert {device.effective_flops_per_s for device in known.devices} == {20e12}


def test_a_known_gpu_reaches_a_part_of_its_peak():
    cluster = with_speeds(
        topo.load("case5-worldwide"), Precision.FP16, fraction=0.4, unknown_flops_per_s=None
    )
    assert {d.effective_flops_per_s for d in cluster.devices} == {0.4 * 125e12}


def test_a_device_of_which_nothing_is_known_has_to_be_told_of():
    laptop = topo.load("laptop")
    with pytest.raises(ConfigError, match=r"^`paced\.tflops` must be set: device 'here-0:0' of"):
        with_speeds(laptop, Precision.FP32, fraction=0.4, unknown_flops_per_s=None)
    told = with_speeds(laptop, Precision.FP32, fraction=0.4, unknown_flops_per_s=7e9)
    assert told.devices[3].effective_flops_per_s == 7e9


@pytest.mark.parametrize("ideal", [True, False])
@pytest.mark.parametrize("keep_warm", [True, False])
@pytest.mark.parametrize("restart_bytes", [None, 14480.0])
def test_slow_starts_are_charged_where_the_cluster_says_so(
    ideal: bool, keep_warm: bool, restart_bytes: float | None
):
    cluster = replace(topo.load("case5-worldwide"), restart_bytes=restart_bytes)
    known = costed(
        GPT2,
        cluster,
        remat=Remat.NONE,
        profile=None,
        tflops=None,
        matmul_precision=MatmulPrecision.TF32,
    )
    overheads = known.overheads(chunk_bytes=1e6, ideal=ideal, keep_warm=keep_warm)
    expected = None if keep_warm else restart_bytes
    assert overheads.messages.restart_bytes == expected
    assert overheads.gradients.restart_bytes == expected
    assert (overheads.messages.overhead_s > 0) is not ideal
