"""A cache of keys and values changes no logits: those of each token are those of the whole text."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models import ModelConfig, build_model
from jaxpipe.models.decoder import Decoder, can_decode
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.stage import Stage
from tests.oracles.llamas import GEMMA, GEMMA3_RAGGED, LLAMA

pytestmark = pytest.mark.slow

GPT = GptConfig(num_layers=2, dim=16, num_heads=2, sequence=12, vocabulary=19)
MODELS: dict[str, ModelConfig] = {
    "gpt": GPT,
    "llama": replace(LLAMA, tied=True),
    "gemma2": GEMMA,  # pairs of a window and all tokens, soft bounds of scores and logits
    "gemma3": GEMMA3_RAGGED,
}
LENGTHS = np.array([5, 1, 3], np.int32)
ROOM = 11


@cache
def logits(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits after each later token of three texts: with the cache, and without."""
    model: Any = build_model(MODELS[name])
    decoder = Decoder(model, ROOM)
    whole = Stage(
        model=model, index=0, num_stages=1, layers=range(model.num_layers), loop=Loop.SCAN
    )
    texts = np.random.default_rng(0).integers(0, model.vocabulary, (3, ROOM)).astype(np.int32)
    # Padding that differs from the tokens which follow: nothing may read it.
    prompts = np.where(np.arange(5) < LENGTHS[:, None], texts[:, :5], 7).astype(np.int32)

    @jax.jit
    def both(prompts: jax.Array, texts: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = jax.tree.map(lambda leaf: 4 * leaf, whole.init(seed=3))  # far from uniform
        first, cache = decoder.prefill(params, prompts, jnp.asarray(LENGTHS))

        def step(cache: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            at = jnp.asarray(LENGTHS) + number
            found, cache = decoder.step(params, texts[jnp.arange(3), at], at, cache)
            return cache, found

        _, later = jax.lax.scan(step, cache, jnp.arange(ROOM - 5))
        every = whole.logits(params, texts)
        places = LENGTHS - 1 + jnp.arange(ROOM - 4)[:, None]
        return jnp.concatenate((first[None], later)), every[jnp.arange(3), places]

    found, expected = both(jnp.asarray(prompts), jnp.asarray(texts))
    return np.asarray(found), np.asarray(expected)


@pytest.mark.parametrize("name", MODELS)
def test_logits_with_a_cache_are_those_without(name: str) -> None:
    found, expected = logits(name)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))


def test_encoders_and_experts_are_not_cached() -> None:
    for change in ({"causal": False, "classes": 3}, {"experts": 2}):
        assert not can_decode(build_model(replace(GPT, tied=False, **change)))
    assert not can_decode(object())
