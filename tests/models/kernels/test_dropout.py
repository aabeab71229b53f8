"""Dropout: the key decides, each place draws its own, and without a key there is none."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.kernels.dropout import dropout
from tests.oracles import whole_model as uncut
from tests.oracles.whole_model import SMALL

pytestmark = pytest.mark.slow

PLAIN = Gpt(SMALL)
DROPPING = Gpt(replace(SMALL, dropout=0.5))
TOKENS = uncut.random_tokens(DROPPING, 2, 8)


def test_it_drops_the_rate_and_keeps_the_mean() -> None:
    x = dropout(jnp.ones(40_000), jax.random.key(0), rate=0.25)
    assert set(np.unique(x)) == {0, np.float32(1 / 0.75)}
    # Five standard errors of a share of 0.25 in 40,000 draws.
    np.testing.assert_allclose(np.mean(x == 0), 0.25, atol=0.011)


def test_the_gradient_passes_where_the_value_does() -> None:
    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(dropout(x, jax.random.key(0), rate=0.25))

    x = jnp.ones(100)
    np.testing.assert_array_equal(jax.grad(total)(x), dropout(x, jax.random.key(0), rate=0.25))


def test_same_key_same_logits() -> None:
    params = uncut.init(PLAIN)
    one, again, other = (
        uncut.logits(DROPPING, params, TOKENS, jax.random.key(seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)


def test_no_key_no_dropout() -> None:
    params = uncut.init(PLAIN)
    plain = uncut.logits(PLAIN, params, TOKENS)
    np.testing.assert_array_equal(uncut.logits(DROPPING, params, TOKENS), plain)
    np.testing.assert_array_equal(uncut.logits(PLAIN, params, TOKENS, jax.random.key(0)), plain)


def test_the_embedding_drops() -> None:
    x = jax.jit(DROPPING.embed)(uncut.init(PLAIN), TOKENS, jax.random.key(0))
    assert 0.3 < np.mean(x == 0) < 0.7


def test_the_two_places_of_a_layer_draw_apart() -> None:
    layer = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), uncut.init(PLAIN)["blocks"])
    for last in (layer["attention"]["project"], layer["mlp"]["down"]):
        last["bias"] = jnp.ones_like(last["bias"])
    x = jax.jit(DROPPING.block)(layer, jnp.zeros((2, 8, 24)), jax.random.key(0))
    assert set(np.unique(x)) == {0, 2, 4}
