"""Activations round once: no result is further from the exact one than half of its last place."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from jaxpipe.models.kernels.activations import gelu, rounded_once
from jaxpipe.models.llama_config import Activation
from jaxpipe.models.llama_modules import gated


def arguments(dtype: str) -> Array:
    return jnp.linspace(-6, 6, 2_001).astype(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("activation", "plain"),
    [
        (gelu, partial(jax.nn.gelu, approximate=True)),
        (rounded_once(jax.nn.silu), jax.nn.silu),
    ],
)
def test_results_and_gradients_are_rounded_once(
    activation: Callable[[Array], Array], plain: Callable[[Array], Array], dtype: str
):
    x = arguments(dtype)
    exact = x.astype(jnp.float32)
    for one, other in (
        (activation(x), plain(exact)),
        (slope(activation, x), slope(plain, exact)),
    ):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, other.astype(dtype))


def slope(activation: Callable[[Array], Array], x: Array) -> Array:
    (gradient,) = jax.vjp(activation, x)[1](jnp.ones_like(x))
    return gradient


def test_both_factors_of_a_gated_activation_are_wide():
    gate, up = arguments("bfloat16"), arguments("bfloat16")[::-1]
    for activation in Activation:
        function = partial(gated, activation)
        exact = function(gate.astype(jnp.float32), up.astype(jnp.float32))
        np.testing.assert_array_equal(rounded_once(function)(gate, up), exact.astype(jnp.bfloat16))


def test_float32_stays_as_it_is():
    x = arguments("float32")
    np.testing.assert_array_equal(gelu(x), jax.nn.gelu(x, approximate=True))
