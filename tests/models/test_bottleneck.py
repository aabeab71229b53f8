"""Bottlenecks of a model: their parameters, what passes through them, and their costs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.bottleneck_costs import bottleneck_parameters, narrow_bytes
from jaxpipe.models.costs import num_parameters
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.stage import Stage

SIZES: dict[str, Any] = {
    "num_layers": 3,
    "dim": 16,
    "num_heads": 2,
    "sequence": 8,
    "vocabulary": 32,
}
PLACES = ((1, 4), (2, 2))
MODEL = Gpt(GptConfig(**SIZES, bottlenecks=PLACES))


def params_of(layers: range) -> dict[str, Any]:
    ends = {"embed": layers.start == 0, "head": layers.stop == 3}
    return MODEL.init(jax.random.key(0), layers=layers, **ends)


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return params_of(range(3))


def test_each_side_of_a_cut_holds_its_own_parameters_bit_by_bit(whole: dict[str, Any]):
    expected = whole["bottlenecks"]
    sides = {1: ("down",), 2: ("positions", "previous", "tokens", "up")}
    first, second, third = (params_of(range(n, n + 1))["bottlenecks"] for n in range(3))
    assert {name: tuple(sorted(part)) for name, part in first.items()} == {"1": sides[1]}
    assert tuple(sorted(second)) == ("1", "2")
    assert tuple(sorted(second["1"])) == sides[2]
    assert tuple(sorted(second["2"])) == sides[1]
    assert tuple(sorted(third["2"])) == sides[2]
    for drawn in (first, second, third):
        for after, part in drawn.items():
            for name, leaf in part.items():
                np.testing.assert_array_equal(leaf, expected[after][name])


def test_a_fresh_bottleneck_projects_onto_a_subspace(whole: dict[str, Any]):
    for after, rank in PLACES:
        part = whole["bottlenecks"][str(after)]
        np.testing.assert_allclose(part["down"].T @ part["down"], np.eye(rank), atol=1e-6)
        np.testing.assert_array_equal(part["up"], part["down"].T)


def test_what_a_token_adds_is_that_of_the_token_its_place_and_the_token_before(
    whole: dict[str, Any],
):
    part = whole["bottlenecks"]["1"]
    tokens = jnp.array([[3, 5, 3]])
    narrow = jax.random.normal(jax.random.key(1), (1, 3, 4))
    added = MODEL.widen(whole, narrow, tokens, 1) - narrow @ part["up"]
    for place, (token, before) in enumerate(((3, None), (5, 3), (3, 5))):
        expected = part["tokens"][token] + part["positions"][place]
        expected += 0 if before is None else part["previous"][before]
        np.testing.assert_allclose(added[0, place], expected, atol=1e-6)


@pytest.mark.parametrize("loop", Loop)
def test_no_token_sees_a_later_one(loop: Loop, whole: dict[str, Any]):
    stage = Stage(model=MODEL, index=0, num_stages=1, layers=range(3), loop=loop)
    tokens = jnp.array([[1, 2, 3, 4, 5, 6, 7, 8]])
    changed = tokens.at[0, 4].set(9)
    read = jax.jit(lambda tokens: stage.logits(stage.spread(whole), tokens))
    before, after = read(tokens)[0], read(changed)[0]
    np.testing.assert_array_equal(before[:4], after[:4])
    # The next token reads it through the table of the token before, and through attention.
    assert (np.abs(before[4:] - after[4:]).max(axis=1) > 0).all()


def test_the_closed_form_counts_the_parameters(whole: dict[str, Any]):
    config = MODEL.config
    for layers in (range(3), range(1), range(1, 2), range(1, 3)):
        drawn = params_of(layers)["bottlenecks"]
        sizes = sum(leaf.size for leaf in jax.tree.leaves(drawn))
        assert bottleneck_parameters(config, layers=layers) == sizes
    counted = num_parameters(config, layers=3, embed=True, head=True)
    counted += bottleneck_parameters(config, layers=range(3))
    assert counted == sum(leaf.size for leaf in jax.tree.leaves(whole))


def test_what_crosses_a_cut_is_the_rank_in_the_format_of_activations():
    config = GptConfig(**SIZES, bottlenecks=PLACES, compute_dtype="bfloat16")
    assert narrow_bytes(config, batch=3, sequence=8) == {1: 3 * 8 * 4 * 2, 2: 3 * 8 * 2 * 2}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bottlenecks": ((0, 2),)}, "`bottlenecks` must be after 1 to 2 layers, .*, not after 0"),
        ({"bottlenecks": ((3, 2),)}, "not after 3"),
        ({"bottlenecks": ((2, 2), (1, 2))}, "each place once and in order, not after 2, 1"),
        ({"bottlenecks": ((1, 2), (1, 2))}, "not after 1, 1"),
        ({"bottlenecks": ((1, 0),)}, "at least 1 number and at most `dim`, 16, not 0 after 1"),
        ({"bottlenecks": ((1, 17),)}, "not 17 after 1 layers"),
        (
            {
                "bottlenecks": ((1, 2),),
                "patch": 2,
                "sequence": 5,
                "classes": 2,
                "tied": False,
                "causal": False,
            },
            r"`bottlenecks` \(rank 2 after 1 layers\) must be empty where inputs are pictures",
        ),
    ],
)
def test_bad_places_are_refused(fields: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        GptConfig(**{**SIZES, **fields})
