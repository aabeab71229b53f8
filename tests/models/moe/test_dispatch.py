"""Routing groups against halves of a batch: which tokens an expert drops."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.models.moe.dispatch import dispatched
from jaxpipe.models.moe.router import route
from jaxpipe.models.moe.routing import Routing

ROUTING = Routing(experts=4)
X = jax.random.normal(jax.random.key(0), (8, 16, 4))
KERNEL = jax.random.normal(jax.random.key(1), (4, 4))


def mixed(x: jax.Array) -> jax.Array:
    capacity = ROUTING.capacity(x.shape[1])
    return dispatched(x, route(x, KERNEL, ROUTING), jnp.tanh, capacity=capacity)


def as_one_group(x: jax.Array) -> jax.Array:
    """Route all tokens of a device together, as DeepSpeed does."""
    return mixed(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)


def test_a_group_of_one_sequence_drops_the_same_tokens_in_both_halves() -> None:
    halves = jnp.concatenate([mixed(X[:4]), mixed(X[4:])])
    whole = mixed(X)
    dropped = np.all(np.asarray(whole) == 0, axis=-1)
    assert 0 < dropped.sum() < dropped.size
    np.testing.assert_array_equal(np.all(np.asarray(halves) == 0, axis=-1), dropped)
    # Not bit by bit: a product of another size may round differently, and does with jax 0.12.0.1.
    np.testing.assert_allclose(halves, whole, rtol=1e-5, atol=1e-6)


def test_a_group_of_a_device_drops_others_in_its_halves() -> None:
    halves = jnp.concatenate([as_one_group(X[:4]), as_one_group(X[4:])])
    dropped = np.all(np.asarray(as_one_group(X)) == 0, axis=-1)
    assert 0 < dropped.sum() < dropped.size
    assert (dropped != np.all(np.asarray(halves) == 0, axis=-1)).any()
