"""The closed forms of what tensor parallelism splits agree with the model's own table."""

import math
from typing import Any

import jax
import pytest

from jaxpipe.models import (
    GptConfig,
    layer_residual_bytes,
    layer_residual_bytes_of_part,
    num_parameters,
    parameters_of_part,
)
from jaxpipe.models.gpt import Gpt


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("embed", "head"), [(False, False), (True, False), (False, True), (True, True)]
)
@pytest.mark.parametrize(("tensor", "vocabulary"), [(1, 30), (2, 30), (2, 31), (4, 32), (4, 30)])
def test_parts_are_those_of_the_table_of_the_model(
    tied: bool, embed: bool, head: bool, tensor: int, vocabulary: int
) -> None:
    config = GptConfig(
        num_layers=3, dim=16, num_heads=4, sequence=8, vocabulary=vocabulary, tied=tied
    )
    gpt = Gpt(config)
    shapes = jax.eval_shape(
        lambda: gpt.init(jax.random.key(0), layers=range(2), embed=embed, head=head)
    )
    held = 0
    for path, leaf in jax.tree.leaves_with_path(shapes):
        dim = gpt.split.get(".".join(key.key for key in path))
        is_split = dim is not None and leaf.shape[dim] % tensor == 0
        held += math.prod(leaf.shape) // (tensor if is_split else 1)
    ends = {"embed": embed, "head": head}
    assert parameters_of_part(config, layers=2, **ends, tensor=tensor) == held
    assert parameters_of_part(config, layers=2, **ends, tensor=1) == num_parameters(
        config, layers=2, **ends
    )


def test_one_part_keeps_all_residuals() -> None:
    config = GptConfig(num_layers=3, dim=16, num_heads=4, sequence=8, vocabulary=30, dropout=0.1)
    sizes: dict[str, Any] = {"batch": 2, "sequence": 8}
    whole = layer_residual_bytes(config, **sizes)
    assert layer_residual_bytes_of_part(config, **sizes, tensor=1) == whole
    half = layer_residual_bytes_of_part(config, **sizes, tensor=2)
    assert half.full == whole.full
    assert whole.none / 2 < half.none < whole.none
    assert whole.dots / 2 < half.dots < whole.dots
    parts = layer_residual_bytes_of_part(config, **sizes, tensor=2, in_parts=True)
    assert (parts.none, parts.dots, parts.full) == (
        whole.none / 2,
        whole.dots / 2,
        whole.full / 2,
    )
