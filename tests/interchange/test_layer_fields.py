"""Layers that differ, in the forms of both versions of `transformers`."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.interchange import config_of_llama, llama_config_of
from jaxpipe.models import LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling
from tests.oracles.llamas import GEMMA, GEMMA3, PLAIN, QWEN2, SMOLLM3

ROPES = {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}
LOCAL = {"rope_type": "default", "rope_theta": 30.0}
FULL, LOCAL_TYPE = "full_attention", "sliding_attention"
TYPES = [LOCAL_TYPE, FULL]
UNIFORM = replace(GEMMA3, num_layers=6, alternating=False, period=2, local_base=0.0)


def gemma3(**changes: Any) -> dict[str, Any]:
    return {**llama_config_of(GEMMA3, kind="gemma3_text"), **changes}


def smollm3(**changes: Any) -> dict[str, Any]:
    return {**llama_config_of(SMOLLM3, kind="smollm3"), **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layer_types": None}, GEMMA3),
        (
            {"layer_types": None, "sliding_window_pattern": 2},
            replace(GEMMA3, num_layers=3, period=2),
        ),
        (  # as Gemma 3 1B: 26 layers, of which every sixth is full
            {"layer_types": None, "sliding_window_pattern": 4},
            replace(UNIFORM, full_layers=(3,), local_base=30.0),
        ),
        (  # one group is no layer to cut between
            {"layer_types": None, "sliding_window_pattern": 6},
            replace(UNIFORM, full_layers=(5,), local_base=30.0),
        ),
        (
            {"layer_types": TYPES[::-1] * 3},
            replace(UNIFORM, full_layers=(0, 2, 4), local_base=30.0),
        ),
        ({"layer_types": ["full_attention"] * 6}, replace(UNIFORM, window=0)),
        (
            {"layer_types": None, "sliding_window_pattern": 7},
            replace(UNIFORM, rope_base=30.0, rope_scaling=RopeScaling.NONE, rope_factor=1.0),
        ),
        (
            {
                "rope_scaling": None,
                "rope_parameters": {"full_attention": ROPES, "sliding_attention": LOCAL},
            },
            GEMMA3,
        ),
    ],
)
def test_windows_and_bases_by_layer(changes: dict[str, Any], expected: LlamaConfig) -> None:
    config = config_of_llama(gemma3(**changes))
    assert config == expected
    assert config_of_llama(llama_config_of(config, kind="gemma3_text")) == config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"no_rope_layers": None}, SMOLLM3),
        (
            {"no_rope_layers": [1, 1, 1, 0]},
            replace(PLAIN, num_layers=4, tied=True, full_layers=(3,), unturned=True),
        ),
        (
            {"no_rope_layers": [0, 1, 1, 0]},
            replace(PLAIN, num_layers=4, tied=True, full_layers=(0, 3), unturned=True),
        ),
        ({"no_rope_layers": [0] * 4}, replace(PLAIN, num_layers=4, tied=True, unturned=True)),
        ({"no_rope_layers": [1] * 4}, replace(PLAIN, num_layers=4, tied=True)),
        (
            {"no_rope_layers": None, "no_rope_layer_interval": 9},
            replace(PLAIN, num_layers=4, tied=True),
        ),
    ],
)
def test_positions_by_layer(changes: dict[str, Any], expected: LlamaConfig) -> None:
    config = config_of_llama(smollm3(**changes))
    assert config == expected
    assert config_of_llama(llama_config_of(config, kind="smollm3")) == config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layer_types": None}, GEMMA),
        (
            {"layer_types": None, "num_hidden_layers": 5},
            replace(GEMMA, num_layers=5, alternating=False, full_layers=(1, 3)),
        ),
        (
            {"layer_types": [*TYPES, FULL, FULL]},
            replace(GEMMA, num_layers=4, alternating=False, full_layers=(1, 2, 3)),
        ),
        ({"layer_types": [FULL] * 4}, replace(GEMMA, num_layers=4, alternating=False, window=0)),
        ({"layer_types": [LOCAL_TYPE] * 4}, replace(GEMMA, num_layers=4, alternating=False)),
    ],
)
def test_windows_of_every_other_layer(changes: dict[str, Any], expected: LlamaConfig) -> None:
    config = config_of_llama({**llama_config_of(GEMMA, kind="gemma2"), **changes})
    assert config == expected
    assert config_of_llama(llama_config_of(config, kind="gemma2")) == config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": 3}, {}),
        ({"max_window_layers": 0}, {"window": 3}),
        ({"max_window_layers": 1}, {"window": 3, "full_layers": (0,)}),
        ({}, {}),
        ({"layer_types": TYPES}, {"window": 3, "full_layers": (1,)}),
        ({"layer_types": TYPES, "max_window_layers": 0}, {"window": 3, "full_layers": (1,)}),
        ({"sliding_window": None, "max_window_layers": 0}, {}),
    ],
)
def test_windows_of_later_layers(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    fields = llama_config_of(QWEN2, kind="qwen2") | {"layer_types": None, "sliding_window": 3}
    config = config_of_llama(fields | {"use_sliding_window": True} | changes)
    assert config == replace(QWEN2, **expected)
    assert config_of_llama(llama_config_of(config, kind="qwen2")) == config
    assert config_of_llama(fields | {"max_window_layers": 0}) == QWEN2  # the switch is off


def test_layers_that_are_groups_are_written_as_such() -> None:
    apart = replace(UNIFORM, full_layers=(2, 5), local_base=30.0)
    assert llama_config_of(apart) == llama_config_of(GEMMA3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            gemma3(layer_types=None, sliding_window_pattern=0),
            "^`sliding_window_pattern` .* least 1",
        ),
        (gemma3(layer_types=["full_attention"]), "^`layer_types` .* must be 6 of"),
        (
            {**llama_config_of(QWEN2, kind="qwen2"), "layer_types": TYPES},
            "^`layer_types` .* must be full_attention for each",
        ),
        (smollm3(layer_types=TYPES * 2), "^`layer_types` .* must be full_attention for each"),
        (gemma3(rope_parameters={"rope_type": "default"}), "^`rope_parameters` .* must have the"),
        (
            gemma3(
                rope_scaling=None,
                rope_parameters={"full_attention": ROPES, "sliding_attention": ROPES},
            ),
            "^`rope_local_base_freq` .* state one value in both",
        ),
        (
            gemma3(
                rope_scaling=None,
                rope_parameters={
                    "full_attention": ROPES,
                    "sliding_attention": {**LOCAL, "factor": 2.0},
                },
            ),
            "^`sliding_attention` .* has factor",
        ),
        (gemma3(rope_scaling={"type": "linear", "factor": 2.0}), "^`type` .* must be `rope_type`"),
        (smollm3(no_rope_layers=[1, 2, 1, 0]), "^`no_rope_layers` .* 4 numbers 0 or 1"),
    ],
)
def test_layers_of_another_form_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of_llama(fields)


def yarn(**changes: Any) -> LlamaConfig:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    return config_of_llama({**llama_config_of(PLAIN), "rope_scaling": {**scaling, **changes}})


def test_mscale_is_a_factor_of_yarn() -> None:
    # 0.1 ln 4 is 0.1386.
    factor = yarn(mscale=0.5, mscale_all_dim=2.0).rope_magnitude
    assert factor == pytest.approx(1.0693147 / 1.2772589, rel=1e-6)
    assert yarn(mscale=0.5) == yarn(mscale=0.5, mscale_all_dim=0) == yarn()
    assert yarn(mscale=3, mscale_all_dim=2, attention_factor=1.5).rope_magnitude == 1.5
    with pytest.raises(
        ConfigError, match=r"^`mscale` and `mscale_all_dim` .* must not be negative"
    ):
        yarn(mscale=-1, mscale_all_dim=1)
