"""Forward, loss and gradients of every kind against NumPy; windows; fresh parameters; formats."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models import build_model
from jaxpipe.models.llama import Llama
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling
from jaxpipe.runtime.stage.model import Model
from tests.oracles import numpy_gpt, numpy_llama
from tests.oracles import whole_model as uncut
from tests.oracles.llamas import BIASED, GEMMA, KINDS, LLAMA, MISTRAL, PLAIN, QWEN3

pytestmark = pytest.mark.slow

SCALED = {
    scaling: replace(PLAIN, rope_scaling=scaling, rope_factor=3.0)
    for scaling in (RopeScaling.LINEAR, RopeScaling.NTK)
}


def as_float64(params: dict[str, Any]) -> dict[str, Any]:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.mark.parametrize("config", [*KINDS.values(), *SCALED.values()], ids=[*KINDS, *SCALED])
def test_logits_are_those_of_numpy(config: LlamaConfig) -> None:
    llama = Llama(replace(config, num_layers=1))
    params = uncut.disturbed(llama)
    tokens = uncut.random_tokens(llama, 2, 9)
    theirs = numpy_llama.logits(llama.config, as_float64(params), np.asarray(tokens, np.int64))
    found = uncut.logits(llama, params, tokens)
    np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [BIASED, QWEN3, GEMMA], ids=["biased", "qwen3", "gemma2"])
def test_loss_and_slope_are_those_of_numpy(config: LlamaConfig) -> None:
    llama = Llama(config)
    params = uncut.disturbed(llama)
    tokens = uncut.random_tokens(llama, 2, 9)
    targets = uncut.random_tokens(llama, 2, 9, seed=1)
    wide, numbers = as_float64(params), np.asarray(targets, np.int64)
    theirs = numpy_llama.logits(config, wide, np.asarray(tokens, np.int64))
    loss, gradient = jax.value_and_grad(partial(uncut.loss, llama))(params, tokens, targets)
    np.testing.assert_allclose(loss, numpy_gpt.loss(theirs, numbers), rtol=1e-5)
    source = np.random.default_rng(1)
    way = jax.tree.map(lambda leaf: source.normal(size=leaf.shape), params)

    def moved(step: float) -> float:
        there = jax.tree.map(lambda leaf, by: leaf + step * by, wide, way)
        values = numpy_llama.logits(config, there, np.asarray(tokens, np.int64))
        return numpy_gpt.loss(values, numbers)

    along = sum(jax.tree.leaves(jax.tree.map(np.vdot, gradient, way)))
    np.testing.assert_allclose(along, (moved(1e-5) - moved(-1e-5)) / 2e-5, rtol=2e-4)


@pytest.mark.parametrize(("config", "reach"), [(MISTRAL, 5), (GEMMA, 12)], ids=["window", "pairs"])
def test_a_token_reads_those_in_reach_and_no_later_one(config: LlamaConfig, reach: int) -> None:
    # Two layers with a window of 3 reach 2 + 2 tokens back, and the token itself.
    llama = Llama(config)
    params = uncut.disturbed(llama)
    before = uncut.random_tokens(llama, 1, 12)
    for place in (0, 4):
        after = before.at[0, place].set((before[0, place] + 1) % llama.vocabulary)
        one, other = (uncut.logits(llama, params, each) for each in (before, after))
        changed = np.flatnonzero(np.any(np.asarray(one != other)[0], axis=-1))
        np.testing.assert_array_equal(changed, np.arange(place, min(12, place + reach)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_formats_are_near_float32_and_end_in_it(dtype: str) -> None:
    exact_model, model = Llama(GEMMA), Llama(replace(GEMMA, compute_dtype=dtype))
    params = uncut.init(exact_model)
    tokens = uncut.random_tokens(model, 2, 8)
    exact, rough = (uncut.logits(each, params, tokens) for each in (exact_model, model))
    assert rough.dtype == jnp.float32
    # Rounding to 8 or 11 bits, in about 10 sums per layer and 4 attention layers at most.
    assert np.abs(rough - exact).max() < 40 * float(jnp.finfo(dtype).eps) / 4 * np.abs(exact).max()


def test_it_is_a_model_of_the_catalogue() -> None:
    model: Model = build_model(LLAMA)
    assert (model.num_layers, model.sequence, model.vocabulary, model.tied) == (2, 12, 19, False)
    assert model == Llama(LLAMA)
    assert hash(model) == hash(Llama(LLAMA))


@pytest.mark.parametrize("token", [-1, 19])
def test_a_token_outside_the_vocabulary_is_noticed(token: int) -> None:
    llama = Llama(LLAMA)
    x = llama.embed(uncut.init(llama), jnp.array([[3, token]]), None)
    assert np.isfinite(x[0, 0]).all()
    assert np.isnan(x[0, 1]).all()


def test_a_sequence_too_long_is_refused() -> None:
    llama = Llama(LLAMA)
    tokens = uncut.random_tokens(llama, 1, 13)
    with pytest.raises(ValueError, match=r"`sequence` must be at least .*, 13, not 12"):
        llama.embed(uncut.init(llama), tokens, None)
