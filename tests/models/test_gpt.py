"""The forward, the loss and their gradients against NumPy; causality; number formats; limits."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.stage.model import Model
from tests.oracles import numpy_gpt
from tests.oracles import whole_model as uncut
from tests.oracles.whole_model import SMALL, UNTIED

pytestmark = pytest.mark.slow

SHORT = ["bfloat16", "float16"]


def as_float64(params: dict[str, Any]) -> dict[str, Any]:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.mark.parametrize(
    ("config", "batch", "seq"), [(SMALL, 1, 1), (SMALL, 2, 10), (UNTIED, 3, 7)]
)
def test_forward_and_loss_are_those_of_numpy(config: GptConfig, batch: int, seq: int) -> None:
    gpt = Gpt(config)
    params = uncut.disturbed(gpt)
    tokens = uncut.random_tokens(gpt, batch, seq)
    targets = uncut.random_tokens(gpt, batch, seq, seed=1)
    ours = uncut.logits(gpt, params, tokens)
    theirs = numpy_gpt.logits(as_float64(params), np.asarray(tokens, np.int64), config.num_heads)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        uncut.loss(gpt, params, tokens, targets),
        numpy_gpt.loss(theirs, np.asarray(targets, np.int64)),
        rtol=1e-5,
    )


@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_gradient_is_the_slope_of_numpy(config: GptConfig) -> None:
    gpt = Gpt(config)
    params = uncut.disturbed(gpt)
    tokens = uncut.random_tokens(gpt, 2, 6)
    targets = uncut.random_tokens(gpt, 2, 6, seed=1)
    source = np.random.default_rng(1)
    way = jax.tree.map(lambda leaf: source.normal(size=leaf.shape), params)

    def theirs(step: float) -> float:
        moved = jax.tree.map(lambda leaf, by: leaf + step * by, as_float64(params), way)
        values = numpy_gpt.logits(moved, np.asarray(tokens, np.int64), config.num_heads)
        return numpy_gpt.loss(values, np.asarray(targets, np.int64))

    gradient = jax.grad(partial(uncut.loss, gpt))(params, tokens, targets)
    along = sum(jax.tree.leaves(jax.tree.map(np.vdot, gradient, way)))
    np.testing.assert_allclose(along, (theirs(1e-5) - theirs(-1e-5)) / 2e-5, rtol=1e-4)


GPT = Gpt(SMALL)


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 16), min_size=10, max_size=10),
    place=st.integers(0, 9),
    shift=st.integers(1, 16),
)
def test_no_token_reads_a_later_one(tokens: list[int], place: int, shift: int) -> None:
    params = uncut.init(GPT)
    before = jnp.array([tokens], jnp.int32)
    after = before.at[0, place].set((tokens[place] + shift) % 17)
    one, other = (uncut.logits(GPT, params, it) for it in (before, after))
    np.testing.assert_array_equal(one[:, :place], other[:, :place])
    assert np.any(one[:, place] != other[:, place])


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
def test_short_formats_compute_in_their_format_and_end_in_float32(
    param_dtype: str, dtype: str
) -> None:
    gpt = Gpt(replace(SMALL, param_dtype=param_dtype, compute_dtype=dtype))
    params = jax.eval_shape(partial(uncut.init, gpt))
    tokens = uncut.random_tokens(gpt, 2, 8)
    x = jax.eval_shape(gpt.embed, params, tokens, None)
    logits = jax.eval_shape(gpt.head, params, x)
    gradient = jax.eval_shape(jax.grad(partial(uncut.loss, gpt)), params, tokens, tokens)
    assert x.dtype == dtype
    assert logits.dtype == jax.eval_shape(gpt.loss, params, x, tokens).dtype == jnp.float32
    assert {leaf.dtype.name for leaf in jax.tree.leaves(gradient)} == {param_dtype}


@pytest.mark.parametrize("dtype", SHORT)
def test_gradients_of_short_formats_are_finite(dtype: str) -> None:
    gpt = Gpt(replace(SMALL, compute_dtype=dtype))
    tokens = uncut.random_tokens(gpt, 2, 8)
    values = jax.value_and_grad(partial(uncut.loss, gpt))(uncut.init(GPT), tokens, tokens)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values))


@pytest.mark.parametrize("dtype", SHORT)
def test_short_formats_are_near_float32(dtype: str) -> None:
    tokens = uncut.random_tokens(GPT, 2, 8)
    params = uncut.disturbed(GPT)
    exact = uncut.logits(GPT, params, tokens)
    rough = uncut.logits(Gpt(replace(SMALL, compute_dtype=dtype)), params, tokens)
    # Rounding to 8 or 11 bits, in about 6 sums per layer: 3 * 6 half steps of the logits' own size.
    half_step = float(jnp.finfo(dtype).eps) / 4
    assert np.abs(rough - exact).max() < 18 * half_step * np.abs(exact).max()


def test_parameters_may_come_cast() -> None:
    gpt = Gpt(replace(SMALL, compute_dtype="bfloat16"))
    tokens = uncut.random_tokens(gpt, 1, 4)
    params = uncut.init(GPT)
    cast = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    layer, cast_layer = (jax.tree.map(lambda leaf: leaf[1], p["blocks"]) for p in (params, cast))
    x = gpt.embed(cast, tokens, None)
    block = jax.jit(gpt.block)
    np.testing.assert_array_equal(block(layer, x, None), block(cast_layer, x, None))


def test_it_is_a_model() -> None:
    model: Model = Gpt(UNTIED)
    assert (model.num_layers, model.sequence, model.vocabulary, model.tied) == (3, 10, 17, False)
    assert model == Gpt(UNTIED)
    assert hash(model) == hash(Gpt(UNTIED))


def test_a_sequence_too_long_is_refused() -> None:
    tokens = uncut.random_tokens(GPT, 1, 11)
    with pytest.raises(
        ValueError, match="`sequence` must be at least the number of tokens, 11, not 10"
    ):
        GPT.embed(uncut.init(GPT), tokens, None)


@pytest.mark.parametrize("token", [-1, 17])
def test_what_is_outside_the_vocabulary_is_noticed(token: int) -> None:
    params = uncut.init(GPT)
    x = jax.jit(GPT.embed)(params, jnp.array([[3, token]]), None)
    assert np.isfinite(x[0, 0]).all()
    assert np.isnan(x[0, 1]).all()
    lost = jax.jit(GPT.loss)(params, jnp.zeros((1, 1, SMALL.dim)), jnp.array([[token]]))
    assert np.isnan(lost)
