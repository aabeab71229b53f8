"""A configuration comes from TOML, and a wrong one says what is wrong."""

import tomllib
from typing import Any

import msgspec
import pytest

from jaxpipe.models.gpt_config import GptConfig

SIZES: dict[str, Any] = {
    "num_layers": 2,
    "dim": 12,
    "num_heads": 3,
    "sequence": 8,
    "vocabulary": 16,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "`num_layers` must be at least 1, not 0"),
        ({"num_layers": 10**12}, "`num_layers` must be from 1 to 65,536, not 1000000000000"),
        ({"num_heads": 2**63}, "`num_heads` must be from 1 to 65,536, not 9223372036854775808"),
        ({"dim": 10**12}, "`dim` must be from 1 to 2,147,483,647, not 1000000000000"),
        ({"experts_per_token": -1}, "`experts_per_token` must be at least 1, not -1"),
        ({"capacity_factor": float("nan")}, "`capacity_factor` must be above 0, not nan"),
        ({"sequence": -1}, "`sequence` must be at least 1, not -1"),
        ({"num_heads": 5}, "`dim` must be a multiple of `num_heads`: 12 is not .* 5; .* 15"),
        ({"dropout": 1.0}, "`dropout` must be at least 0 and below 1, not 1.0"),
        ({"dropout": -0.1}, "`dropout` must be at least 0 and below 1, not -0.1"),
        ({"param_dtype": "float8"}, "`param_dtype` must be one of float32, .*, not 'float8'"),
        ({"compute_dtype": "half"}, "`compute_dtype` must be one of float32, .*, not 'half'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GptConfig(**(SIZES | change))
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(SIZES | change, GptConfig)


def test_it_comes_from_toml() -> None:
    text = """
        num_layers = 2
        dim = 12
        num_heads = 3
        sequence = 8
        vocabulary = 16
        tied = false
        dropout = 0.1
        compute_dtype = "bfloat16"
    """
    config = msgspec.convert(tomllib.loads(text), GptConfig, strict=True)
    assert config == GptConfig(**SIZES, tied=False, dropout=0.1, compute_dtype="bfloat16")


def test_it_goes_back_to_a_dict() -> None:
    config = GptConfig(**SIZES)
    assert msgspec.convert(msgspec.to_builtins(config), GptConfig) == config
