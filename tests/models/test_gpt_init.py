"""Fresh parameters: their layout, their spread, and that no cut changes a bit of them."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from tests.oracles import whole_model as uncut
from tests.oracles.whole_model import SMALL, UNTIED

pytestmark = pytest.mark.slow


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    ("config", "cuts", "jit"),
    [
        pytest.param(SMALL, (0, 1, 2, 3), False, id="tied"),
        pytest.param(SMALL, (0, 1, 3), True, id="tied, jitted"),
        pytest.param(UNTIED, (0, 2, 3), False, id="untied"),
    ],
)
def test_no_cut_changes_a_bit(config: GptConfig, cuts: tuple[int, ...], jit: bool) -> None:
    gpt = Gpt(config)
    whole = uncut.init(gpt)
    for start, stop in pairwise(cuts):
        embed, head = start == 0, stop == 3
        init = partial(gpt.init, layers=range(start, stop), embed=embed, head=head)
        stage = (jax.jit(init) if jit else init)(jax.random.key(0))
        assert_same(
            stage["blocks"], jax.tree.map(lambda a, s=slice(start, stop): a[s], whole["blocks"])
        )
        if embed:
            assert_same(stage["embed"], whole["embed"])
        if head:
            assert_same(stage["head"], whole["head"])
        if head and not embed:
            tokens = {"tokens": whole["embed"]["tokens"]} if config.tied else None
            assert_same(stage.get("embed"), tokens)


@pytest.mark.parametrize(
    ("layers", "embed", "head", "parts"),
    [
        (range(0), False, False, []),
        (range(0), True, False, ["embed"]),
        (range(3, 3), False, True, ["embed", "head"]),
        (range(1, 2), False, False, ["blocks"]),
    ],
)
def test_a_stage_holds_what_it_computes(
    layers: range, embed: bool, head: bool, parts: list[str]
) -> None:
    params = Gpt(SMALL).init(jax.random.key(0), layers=layers, embed=embed, head=head)
    assert sorted(params) == parts


def test_leaves_are_few() -> None:
    params = jax.eval_shape(partial(uncut.init, Gpt(UNTIED)))
    assert {k: len(jax.tree.leaves(v)) for k, v in params.items()} == {
        "embed": 2,
        "blocks": 12,
        "head": 3,
    }


def test_spread_is_that_of_gpt2() -> None:
    gpt = Gpt(GptConfig(num_layers=2, dim=128, num_heads=2, sequence=64, vocabulary=99, tied=False))
    params = uncut.init(gpt)
    blocks = params["blocks"]
    wide = [params["embed"]["tokens"], params["embed"]["positions"], params["head"]["kernel"]]
    wide += [blocks["attention"]["qkv"]["kernel"], blocks["mlp"]["up"]["kernel"]]
    narrow = [blocks["attention"]["project"]["kernel"], blocks["mlp"]["down"]["kernel"]]
    # The standard error of a standard deviation from 8,192 draws or more is below 0.8 %.
    for leaf in wide:
        np.testing.assert_allclose(np.std(leaf), 0.02, rtol=0.04)
    for leaf in narrow:
        np.testing.assert_allclose(np.std(leaf), 0.02 / np.sqrt(2 * 2), rtol=0.04)
    for norm in (blocks["norm1"], blocks["norm2"], params["head"]["norm"]):
        assert np.all(norm["scale"] == 1)
        assert np.all(norm["bias"] == 0)
    for linear in (*blocks["attention"].values(), *blocks["mlp"].values()):
        assert np.all(linear["bias"] == 0)


def test_no_two_leaves_are_alike() -> None:
    params = uncut.init(Gpt(UNTIED))
    square = params["blocks"]["attention"]["project"]["kernel"]
    assert np.any(square[0] != square[1])
    tables = [params["embed"]["tokens"], params["embed"]["positions"], params["head"]["kernel"]]
    assert len({float(table[0, 0]) for table in tables}) == 3


def test_bfloat16_parameters_are_float32_ones_rounded() -> None:
    rounded = uncut.init(Gpt(replace(SMALL, param_dtype="bfloat16")))
    assert_same(rounded, jax.tree.map(lambda a: a.astype(jnp.bfloat16), uncut.init(Gpt(SMALL))))


@pytest.mark.parametrize("layers", [range(2, 4), range(-1, 2), range(0, 3, 2)])
def test_layers_of_another_model_are_refused(layers: range) -> None:
    with pytest.raises(ValueError, match=r"`layers` must be .* range\(0, 3\), not range"):
        Gpt(SMALL).init(jax.random.key(0), layers=layers, embed=False, head=False)
