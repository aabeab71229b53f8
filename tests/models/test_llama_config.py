"""A configuration of the family `llama` comes from TOML; a wrong one says what is wrong."""

from typing import Any

import msgspec
import pytest

from jaxpipe.config import config_from, to_tree
from jaxpipe.errors import ConfigError
from jaxpipe.models import LlamaConfig, config_type, gpt_preset, preset_config
from jaxpipe.propose.resolve import plan_from

SIZES: dict[str, Any] = {
    "num_layers": 2,
    "dim": 12,
    "num_heads": 6,
    "num_kv_heads": 2,
    "hidden": 20,
    "sequence": 8,
    "vocabulary": 16,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, "`hidden` must be at least 1, not 0"),
        # Heads are counted one by one: as many as a file may claim took for ever.
        ({"num_heads": 10**12, "num_kv_heads": 7}, "`num_heads` must be from 1 to 65,536, not 10"),
        ({"norm_epsilon": float("inf")}, "`norm_epsilon` must be from 0 to 2,147,483,647, not inf"),
        ({"window": -1}, "`window` must be at least 0, not -1"),
        ({"num_kv_heads": 4}, "`num_heads` must be a multiple of .* 6 is not .* 4; .* 1, 2, 3, 6"),
        ({"num_heads": 10}, "`dim` must be a multiple of `num_heads`: 12 .* 10; or set `head_w"),
        ({"head_width": 5}, "`head_width` must be even, not 5"),
        ({"alternating": True}, "`window` must be at least 1 .*, not 0"),
        ({"period": 1, "alternating": True, "window": 2}, "`period` must be at least 2, not 1"),
        ({"period": 3}, "`period` must be 2 where layers are no groups, not 3; or set"),
        ({"local_base": 9.0}, "`local_base` must be 0 where all layers are equal, not 9"),
        ({"full_layers": [0]}, "`window` must be at least 1 .*full_layers.*, not 0"),
        (
            {"full_layers": [0], "alternating": True, "window": 2},
            "`full_layers` must be empty with `alternating`, not .0",
        ),
        ({"full_layers": [1, 0], "window": 2}, "`full_layers` must be numbers from 0 to 1 in asc"),
        ({"full_layers": [2], "window": 2}, "`full_layers` must be numbers from 0 to 1 .*2"),
        ({"full_layers": [-1], "window": 2}, "`full_layers` must be numbers from 0 to 1 .*-1"),
        ({"full_layers": [0, 1], "window": 2}, "`full_layers` .* not of all layers, and is .0, 1"),
        (
            {"local_base": 0.5, "alternating": True, "window": 2},
            "`local_base` must be above 1, or 0, not 0.5",
        ),
        (
            {"attention": "flash", "attention_softcap": 50.0},
            "`attention` .flash. must be auto with `attention_softcap` .50.0.",
        ),
        ({"rope_base": 1.0}, "`rope_base` must be above 1, not 1.0"),
        ({"rope_factor": 0.5}, "`rope_factor` must be at least 1, not 0.5"),
        ({"rope_scaling": "llama3", "rope_low": 4.0}, "`rope_low` .* below `rope_high`, 4.0, not"),
        ({"experts": -1}, "`experts` must be at least 0, not -1"),
        (
            {"experts": 2, "experts_per_token": 3},
            "`experts_per_token` .* at most `experts`, 2, not",
        ),
        ({"experts_per_token": 2}, "`experts_per_token` must be 1 where `experts` is 0, not 2"),
        ({"experts": 2, "mlp_bias": True}, "`mlp_bias` must be false where `experts` is 2"),
        ({"param_dtype": "float8"}, "`param_dtype` must be one of float32, .*, not 'float8'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(SIZES | change, LlamaConfig)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"family": "lama", **SIZES}, r"`model.family` must be llama, .*, not 'lama'"),
        ({"family": "llama", **SIZES, "patch": 2}, "unknown key `model.patch`"),
        ({"preset": "llama-tiny", "dropout": 0.1}, "unknown key `model.dropout`"),
        ({"preset": "tiny", "num_kv_heads": 2}, "unknown key `model.num_kv_heads`"),
    ],
)
def test_the_section_of_another_family_is_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from({"run": {"folder": "a"}, "data": {"folder": "b"}, "model": model})


def test_a_configuration_survives_its_tree() -> None:
    model = {"preset": "gemma-2-2b", "num_layers": 1}
    config = config_from({"run": {"folder": "a"}, "data": {"folder": "b"}, "model": model})
    assert isinstance(config.model, LlamaConfig)
    assert config.model.depth == 2
    assert config_from(to_tree(config)) == config


def test_a_mesh_divides_the_heads_of_keys() -> None:
    tree = {
        "run": {"folder": "a"},
        "data": {"folder": "b"},
        "model": {"preset": "llama-tiny"},
        "mesh": {"tensor": 8},
        "plan": {
            "cluster": "laptop",
            "stages": 1,
            "replicas": 1,
            "microbatch": 1,
            "schedule": "1f1b",
        },
    }
    with pytest.raises(
        ConfigError, match=r"`mesh\.tensor` \(8\) must divide `model\.num_kv_heads` \(4\)"
    ):
        plan_from(config_from(tree))


def test_what_knows_gpts_alone_refuses_others() -> None:
    assert gpt_preset("gpt2") == preset_config("gpt2")
    with pytest.raises(ValueError, match=r"'llama-tiny' is of the family 'llama', .* name a GPT"):
        gpt_preset("llama-tiny")
    with pytest.raises(ValueError, match="`family` must be llama, or left out for a GPT, not 3"):
        config_type({"family": 3})
