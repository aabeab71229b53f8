"""Gradients are one vector for each reduction, bit for bit, without a copy in another format."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxpipe.runtime.stage.gradient_buckets import concatenated, pack, unpack
from jaxpipe.schedule import Bucket


def _gradients(dtype: str) -> dict[str, dict[str, jax.Array]]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "embed": {"tokens": jax.random.normal(keys[0], (7, 3)).astype(dtype)},
        "blocks": {"w": jax.random.normal(keys[1], (2, 3, 5)).astype(dtype)},
        "head": {"scale": jnp.array([jnp.nan, -0.0, jnp.inf]).astype(dtype)},
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("tied", [False, True])
def test_vectors_are_the_leaves_bit_for_bit(dtype: str, tied: bool):
    gradients = _gradients(dtype)
    buckets = jax.jit(lambda tree: pack(tree, tied=tied))(gradients)
    if not tied:
        (vector,) = buckets[Bucket.STAGE]
        assert np.asarray(vector).tobytes() == np.asarray(ravel_pytree(gradients)[0]).tobytes()
    back = unpack(buckets, gradients, tied=tied)
    for leaf, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(back), strict=True):
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes()


def test_arrays_of_unlike_formats_are_joined_in_the_widest():
    joined = concatenated([jnp.ones(2, jnp.bfloat16), jnp.full(3, 0.1, jnp.float32)])
    assert joined.dtype == jnp.float32
    np.testing.assert_array_equal(joined, np.array([1, 1, 0.1, 0.1, 0.1], np.float32))


def test_no_leaves_are_an_empty_vector():
    assert pack({"blocks": {}}, tied=False)[Bucket.STAGE][0].shape == (0,)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of XLA on CPUs")
def test_many_short_floats_are_joined_without_a_copy_in_float32():
    # Of fewer leaves XLA makes one loop, which keeps nothing.
    leaves = [jax.ShapeDtypeStruct((64, 16 + more), jnp.bfloat16) for more in range(32)]

    def joined(*given: jax.Array) -> jax.Array:
        return concatenated([leaf.reshape(-1) for leaf in given])

    analysis = jax.jit(joined).lower(*leaves).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 1024
