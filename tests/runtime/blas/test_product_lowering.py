"""Products by the custom call equal those in float64 within roundings, and the rest is XLA's."""

import os
import subprocess
import sys
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxpipe.runtime.blas.matrix_product import DotDims, matrix_product
from jaxpipe.runtime.blas.product_lowering import (
    FORMATS,
    LEAST_MULTIPLICATIONS,
    former_rule,
    gemm_rule,
    lower_products,
)
from jaxpipe.runtime.process.quick_compiles import quick_flags

pytestmark = pytest.mark.usefixtures("call")

EPSILON = float(np.finfo(np.float32).eps)
MOST_MULTIPLICATIONS = 2**24
SIZES: st.SearchStrategy[int] = st.sampled_from((0, 1, 2, 3, 5, 7, 64, 130))


def lowered(function: Any, *arguments: Any) -> str:
    return jax.jit(function).lower(*arguments).as_text()


@st.composite
def dots(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], DotDims]:
    """Draw two shapes and the dims of a dot_general, in any order."""
    sizes = st.lists(SIZES, max_size=2)
    summed, left, right = draw(sizes), draw(sizes), draw(sizes)
    assume(prod((*summed, *left, *right)) <= MOST_MULTIPLICATIONS)
    batch: list[int] = draw(st.lists(st.sampled_from((1, 2)), max_size=1))
    parts: dict[str, list[int]] = {"summed": summed, "batch": batch}

    def factor(free: list[int]) -> tuple[tuple[int, ...], list[int], list[int]]:
        dims = [("free", i) for i in range(len(free))]
        dims += [(name, i) for name, part in parts.items() for i in range(len(part))]
        order = draw(st.permutations(dims))
        shape = tuple((free if name == "free" else parts[name])[i] for name, i in order)
        summed, batch = (
            [order.index((name, i)) for i in range(len(part))] for name, part in parts.items()
        )
        return shape, summed, batch

    left_shape, left_summed, left_batch = factor(left)
    right_shape, right_summed, right_batch = factor(right)
    return left_shape, right_shape, ((left_summed, right_summed), (left_batch, right_batch))


@pytest.mark.slow
@settings(max_examples=100)
@given(
    dots(),
    st.sampled_from(FORMATS),
    st.sampled_from((None, jnp.float32)),
    st.integers(0, 2**32 - 1),
)
def test_products_equal_those_in_float64(dot: Any, dtype: np.dtype, of_result: Any, seed: int):
    left_shape, right_shape, dims = dot
    generator = np.random.default_rng(seed)
    left, right = (
        generator.standard_normal(shape).astype(dtype) for shape in (left_shape, right_shape)
    )

    def multiply(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.dot_general(left, right, dims, preferred_element_type=of_result)

    # Under jit, so that neither jax nor this law runs anything but the rule.
    computed = np.asarray(jax.jit(multiply)(left, right))
    expected, size = in_float64(left, right, dims)
    assert computed.shape == expected.shape
    assert computed.dtype == (of_result or dtype)
    num_summed = prod(left_shape[dim] for dim in dims[0][0])
    # The sum is that of float32, whatever the factors, and rounded once.
    error = max(1, num_summed) * EPSILON + float(jnp.finfo(computed.dtype).eps)
    assert np.all(abs(computed.astype(np.float64) - expected) <= error * size)
    is_product = matrix_product(left_shape, right_shape, dims) is not None
    assert ("jaxpipe_gemm" in lowered(multiply, left, right)) == is_product


def in_float64(left: np.ndarray, right: np.ndarray, dims: DotDims) -> tuple[Any, Any]:
    """Return the product in float64, and that of the absolute values, which bounds the error."""
    letters = iter("abcdefghijklmnop")
    (summed, other_summed), (batch, other_batch) = dims
    shared = {dim: next(letters) for dim in (*batch, *summed)}
    of_left = [shared.get(dim) or next(letters) for dim in range(left.ndim)]
    pairs = zip((*other_batch, *other_summed), (*batch, *summed), strict=True)
    of_right = {dim: shared[other] for dim, other in pairs}
    names = [of_right.get(dim) or next(letters) for dim in range(right.ndim)]
    result = [shared[dim] for dim in batch]
    result += [name for dim, name in enumerate(of_left) if dim not in shared]
    result += [name for dim, name in enumerate(names) if dim not in of_right]
    text = f"{''.join(of_left)},{''.join(names)}->{''.join(result)}"
    left, right = left.astype(np.float64), right.astype(np.float64)
    return np.einsum(text, left, right), np.einsum(text, abs(left), abs(right))


def test_gradients_are_those_of_xla():
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(s).astype(np.float32) for s in ((3, 40, 64), (64, 130)))

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    gradient = jax.grad(loss, argnums=(0, 1))
    by_call = jax.jit(gradient)(x, w)
    assert lowered(gradient, x, w).count("custom_call @jaxpipe_gemm") == 3
    rounded = [np.asarray(part, np.float64) for part in in_xla(gradient, x, w)]
    for one, other in zip(by_call, rounded, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * float(abs(other).max()))


def in_xla(function: Any, *arguments: Any) -> Any:
    """Return the results of a function whose products XLA computes one by one."""
    with jax.disable_jit():
        return function(*(np.asarray(a, np.float32) for a in arguments))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [3, 200])
def test_what_is_not_finite_is_passed_on(value: float, rows: int):
    left = np.ones((rows, 5), np.float32)
    left[1, 2] = value
    product = np.asarray(jax.jit(jnp.matmul)(left, np.ones((5, 130), np.float32)))
    np.testing.assert_array_equal(product[1], np.full(130, value, np.float32))
    assert np.all(np.delete(product, 1, axis=0) == 5)


def test_an_empty_sum_is_zero():
    product = jax.jit(jnp.matmul)(np.ones((4, 0), np.float32), np.ones((0, 3), np.float32))
    np.testing.assert_array_equal(product, np.zeros((4, 3), np.float32))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.int32])
def test_products_of_other_formats_are_those_of_xla(dtype: Any):
    left, right = jnp.ones((64, 64), dtype), jnp.ones((64, 64), dtype)
    assert "jaxpipe_gemm" not in lowered(jnp.matmul, left, right)


def test_products_of_mixed_formats_are_those_of_xla():
    left, right = jnp.ones((64, 64), jnp.bfloat16), jnp.ones((64, 64))

    def multiply(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.dot(left, right, preferred_element_type=jnp.float32)

    assert "jaxpipe_gemm" not in lowered(multiply, left, right)


@pytest.mark.parametrize("precision", ["default", "high", "highest", "float32"])
def test_all_precisions_of_float32_are_products_of_the_call(precision: str):
    left = jnp.ones((64, 64))
    with jax.default_matmul_precision(precision):
        assert "jaxpipe_gemm" in lowered(lambda left: left @ left, left)


def test_an_algorithm_is_that_of_xla():
    left = jnp.ones((64, 64))

    def multiply(left: jax.Array) -> jax.Array:
        return jax.lax.dot(left, left, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32)

    assert "jaxpipe_gemm" not in lowered(multiply, left)


TWO_DEVICES = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxpipe.runtime.blas.product_lowering import former_rule, lower_products, gemm_rule

lower_products(gemm_rule("jaxpipe_gemm", former_rule(), least=0))
mesh = Mesh(jax.devices(), ("data",))
for sharding in (None, NamedSharding(mesh, PartitionSpec("data"))):
    x = jax.device_put(jnp.ones((64, 64)), sharding)
    print("jaxpipe_gemm" in jax.jit(lambda x: x @ x.T).lower(x).as_text())
"""


@pytest.mark.slow
def test_programs_of_several_devices_are_those_of_xla():
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        env=os.environ | {"XLA_FLAGS": quick_flags("", num_devices=2)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["True", "False"]  # of one device, and of two


def test_small_products_are_those_of_xla(call: str):
    former = former_rule()
    assert former is not None
    rows = LEAST_MULTIPLICATIONS // 64**2
    lower_products(gemm_rule(call, former))
    try:
        texts = [
            lowered(lambda x: x @ jnp.ones((64, 64)), jnp.ones((num, 64)))
            for num in (rows - 1, rows)
        ]
    finally:
        lower_products(gemm_rule(call, former, least=0))
    assert ["jaxpipe_gemm" in text for text in texts] == [False, True]


def test_loops_and_branches_have_the_call_inside():
    x = jnp.ones((64, 64))

    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, jnp.int32(x[0, 0]), lambda _, y: y @ x / 64, x)

    assert "jaxpipe_gemm" in lowered(looped, x)
    np.testing.assert_array_equal(jax.jit(looped)(x), x)
