"""XLA's options of a stage, and what they change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.stage.compiler import compiler_options

_DIM, _NUM_LAYERS = 256, 8


def _layers(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of XLA on CPUs")
def test_weights_of_16_bits_are_not_all_there_in_float32_at_once():
    weights = [jax.ShapeDtypeStruct((_DIM, _DIM), jnp.bfloat16)] * _NUM_LAYERS
    x = jax.ShapeDtypeStruct((8, _DIM), jnp.bfloat16)
    lowered = jax.jit(_layers).lower(weights, x)
    analysis = lowered.compile(compiler_options(np.dtype(jnp.bfloat16))).memory_analysis()
    assert analysis is not None
    wide_bytes = 4 * _DIM**2
    assert analysis.temp_size_in_bytes < 2 * wide_bytes < _NUM_LAYERS * wide_bytes


def test_options_change_no_result_and_are_for_16_bits_alone():
    keys = jax.random.split(jax.random.key(0), _NUM_LAYERS + 1)
    weights = [jax.random.normal(key, (32, 32), jnp.bfloat16) for key in keys[1:]]
    x = jax.random.normal(keys[0], (4, 32), jnp.bfloat16)
    lowered = jax.jit(_layers).lower(weights, x)
    there, here = (
        lowered.compile(options)(weights, x) for options in ({}, compiler_options(x.dtype))
    )
    np.testing.assert_array_equal(np.asarray(there, np.float32), np.asarray(here, np.float32))
    assert compiler_options(np.dtype(np.float32)) == {}
