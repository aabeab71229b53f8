"""The presets are the published sizes, and an unknown name gets a hint."""

from dataclasses import replace

import msgspec
import pytest

from jaxpipe.models import load_preset, presets
from jaxpipe.models.costs import (
    activation_bytes,
    layer_forward_flops,
    num_parameters,
    parameter_bytes,
)
from jaxpipe.models.gpt_config import GptConfig


def preset(name: str) -> GptConfig:
    return msgspec.convert(load_preset(name), GptConfig, strict=True)


def test_the_names_are_sorted() -> None:
    assert presets() == [
        "alpa-1.3b",
        "alpa-125m",
        "alpa-15b",
        "alpa-2.6b",
        "alpa-350m",
        "alpa-6.7b",
        "alpa-760m",
        "bert-sgmoe",
        "bert-switch",
        "bert-switch-tiny",
        "gemma-2-2b",
        "gemma-3-1b",
        "gemma-3-270m",
        "gpt-moe-tiny",
        "gpt-xl-24",
        "gpt-xl-32",
        "gpt-xl-40",
        "gpt2",
        "gpt2-large",
        "gpt2-medium",
        "gpt2-xl",
        "llama-3.1-8b",
        "llama-3.2-1b",
        "llama-tiny",
        "mistral-7b",
        "mixtral-8x7b",
        "qwen3-0.6b",
        "qwen3-30b-a3b",
        "qwen3-8b",
        "smollm3-3b",
        "tiny",
        "vit-sgmoe",
        "vit-switch",
        "vit-switch-tiny",
    ]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("tiny", 842_496),
    ],
)
def test_published_sizes(name: str, count: int) -> None:
    config = preset(name)
    assert num_parameters(config, layers=config.num_layers, embed=True, head=True) == count


@pytest.mark.parametrize(
    ("num_layers", "batch", "petaflop"), [(24, 1024, 23.64), (40, 4096, 157.64)]
)
def test_gpt_xl_is_that_of_dtfm(num_layers: int, batch: int, petaflop: float) -> None:
    config = preset(f"gpt-xl-{num_layers}")
    assert activation_bytes(config, batch=1, sequence=2048) == 8_388_608
    three_layers = parameter_bytes(config, layers=3, embed=False, head=False)
    assert three_layers == pytest.approx(302e6, rel=1e-3)
    first_stage = parameter_bytes(config, layers=3, embed=True, head=False)
    assert first_stage == pytest.approx(429e6, rel=1e-3)
    forward = num_layers * layer_forward_flops(config, batch=batch, sequence=2048)
    assert 4 * forward / 1e15 == pytest.approx(petaflop, rel=2e-4)


# HiDup, table 1, in millions: 89 + 19 n and 38 + 38 n on n devices, with one and two experts each.
@pytest.mark.parametrize("routing", ["switch", "sgmoe"])
@pytest.mark.parametrize("devices", [2, 8, 64])
@pytest.mark.parametrize(
    ("name", "per_device", "fixed", "each"), [("bert", 1, 89, 19), ("vit", 2, 38, 38)]
)
def test_models_with_experts_have_the_published_sizes(
    name: str, per_device: int, fixed: int, each: int, devices: int, routing: str
) -> None:
    config = replace(preset(f"{name}-{routing}"), experts=per_device * devices)
    count = num_parameters(config, layers=config.num_layers, embed=True, head=True)
    assert config.depth == 8
    assert count / 1e6 == pytest.approx(fixed + each * devices, rel=0.007)


@pytest.mark.parametrize("name", ["gtp2", "gpt2 ", ""])
def test_an_unknown_name_gets_the_nearest_and_the_choices(name: str) -> None:
    with pytest.raises(ValueError, match=f"not '{name}'; the nearest is '.*', .* are alpa-1"):
        load_preset(name)


def test_the_nearest_is_near() -> None:
    with pytest.raises(ValueError, match="the nearest is 'gpt2-medium'"):
        load_preset("gpt2-medum")
