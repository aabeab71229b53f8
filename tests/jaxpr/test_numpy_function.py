"""Functions that NumPy evaluates return what JAX computes, in memory of their own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.jaxpr import flatten
from jaxpipe.jaxpr.numpy_function import NumpyFunction
from jaxpipe.jaxpr.numpy_rules import numpy_rule

_ROWS = np.array([[1, 5], [9, -1]])


def _scanned(x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def body(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(carry * row), carry.sum()

    carry, sums = jax.lax.scan(body, jnp.ones(x.shape[1]), x, reverse=True)
    return carry.sum() + sums.max()


FUNCTIONS: dict[str, Callable[[jax.Array], object]] = {
    "elementwise": lambda x: (jnp.exp(-abs(x)), jax.nn.sigmoid(x), jnp.sign(x) ** 3, jnp.round(x)),
    "comparisons": lambda x: jnp.where((x > 0) & ~(x == 1), jnp.clip(x, -1, 1), jnp.sqrt(x * x)),
    "reductions": lambda x: (x.sum(0), x.max(), x.min(1), (x > 0).any(0), jnp.argmax(x, 1)),
    "cumulative": lambda x: (jnp.cumsum(x, 1), jax.lax.cummax(x, axis=0, reverse=True)),
    "shapes": lambda x: (
        x.T.reshape(-1, 2),
        jnp.pad(x, ((1, 0), (0, 2))),
        x[::-1, 1:3],
        x[:, None],
    ),
    "joined": lambda x: (jnp.concatenate([x, x], 1), jnp.stack([x, -x]), jnp.split(x, 2, axis=1)),
    "products": lambda x: (x @ x.T, jnp.einsum("ab,cb->ca", x, x), jnp.vdot(x, x)),
    "batched product": lambda x: jnp.einsum("abc,adc->abd", x.reshape(3, 2, 4), x.reshape(3, 2, 4)),
    "rows": lambda x: (x[_ROWS], jnp.take(x, _ROWS, axis=1), jnp.take(x, _ROWS, 0, mode="clip")),
    "rows of rows": lambda x: jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1),
    "batched rows": lambda x: jax.vmap(lambda row, n: row[n])(x, np.arange(6) % 4),
    "added rows": lambda x: (x.at[_ROWS].add(1.0), x.at[_ROWS, 2].add(2.0, mode="clip")),
    "gradient of rows": jax.grad(lambda x: (jnp.take(x, np.array([1, 2, 2]), axis=0) ** 2).sum()),
    "slices": lambda x: (
        jax.lax.dynamic_slice(x, (jnp.argmax(x[:, 0]), -3), (2, 2)),
        jax.lax.dynamic_update_slice(x, x[:1], (7, 0)),
    ),
    "largest": lambda x: jax.lax.top_k(jnp.floor(x), 3),
    "scan": _scanned,
    "gradient of a scan": jax.grad(_scanned),
    "error function": lambda x: (jax.lax.erf(x), jax.lax.erf_inv(jnp.tanh(x))),
    "iterations": lambda x: jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**32 - 1))
def test_numpy_computes_what_jax_computes(name: str, seed: int):
    x = np.random.default_rng(seed).normal(size=(6, 4)).astype(np.float32)
    expected = jax.tree.leaves(FUNCTIONS[name](jnp.asarray(x)))
    results = jax.tree.leaves(NumpyFunction(FUNCTIONS[name])(x))
    for result, exact in zip(results, expected, strict=True):
        assert isinstance(result, np.ndarray)
        assert (result.shape, result.dtype) == (exact.shape, exact.dtype)
        # Both round, after sums in another order.
        np.testing.assert_allclose(result, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("iterations", "rows of rows")])
def test_these_functions_need_no_rule_of_jax(name: str):
    closed = jax.make_jaxpr(FUNCTIONS[name])(jnp.ones((6, 4)))
    for equation in flatten(closed, unroll=True).equations:
        assert numpy_rule(equation) is not None, equation.primitive


@settings(max_examples=8)
@given(seed=st.integers(-(2**31), 2**31 - 1), number=st.integers(0, 2**32 - 1))
def test_random_bits_are_those_of_jax(seed: int, number: int):
    def bits(seed: jax.Array, number: jax.Array) -> tuple[jax.Array, ...]:
        key = jax.random.fold_in(jax.random.key(seed), number)
        several = jax.random.split(key, 3)
        rows = jax.vmap(lambda key: jax.random.bits(key, (2,)))(several)
        return rows, jax.random.bits(several[1], (3, 2), jnp.uint8), jax.random.uniform(key, (5,))

    arguments = jnp.asarray(seed, jnp.int32), jnp.asarray(number, jnp.uint32)
    for result, exact in zip(NumpyFunction(bits)(*arguments), bits(*arguments), strict=True):
        np.testing.assert_array_equal(result, exact)


def test_keys_enter_and_leave():
    key = jax.random.key(3)
    split = NumpyFunction(jax.random.split)
    result = split(key)
    assert result.dtype == key.dtype
    np.testing.assert_array_equal(
        jax.random.key_data(result), jax.random.key_data(jax.random.split(key))
    )
    assert split.shapes(key).dtype == key.dtype


def test_results_share_no_memory():
    constant = np.arange(3.0)
    function = NumpyFunction(lambda x: (x, x.T, x, jnp.asarray(constant), x * 2))
    x = np.ones((2, 2), np.float32)
    results = function(x)
    for n, result in enumerate(results):
        assert not np.shares_memory(result, x)
        assert not any(np.shares_memory(result, other) for other in results[n + 1 :])
    results[3].fill(7)
    np.testing.assert_array_equal(function(x)[3], constant)


def test_what_is_donated_has_no_value_afterwards():
    x, y = np.ones(3, np.float32), np.ones(3, np.float32)
    total = NumpyFunction(lambda x, y: x + y, donated=(0,))(x, y)
    np.testing.assert_array_equal(total, [2, 2, 2])
    assert np.isnan(x).all()
    assert not np.isnan(y).any()


def test_a_function_is_traced_once_for_each_shape():
    shapes: list[tuple[int, ...]] = []

    def traced(x: jax.Array) -> jax.Array:
        shapes.append(x.shape)
        return x + 1

    function = NumpyFunction(traced)
    assert function.shapes(np.ones(2)).shape == (2,)
    for size in (2, 3, 2):
        function(np.ones(size))
    assert shapes == [(2,), (3,)]
