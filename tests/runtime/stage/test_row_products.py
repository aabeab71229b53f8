"""Products over rows in another order or form equal those of the function that was given."""

from collections.abc import Callable, Sequence
from itertools import permutations
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import ClosedJaxpr

from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.finetune.tuned_model import tuned
from jaxpipe.jaxpr import FlatJaxpr, flatten
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage import row_products
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.row_products import fast_row_products
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Remat
from tests.oracles.one_device import MICROBATCH, SEED, SEQUENCE, VOCABULARY, tiny_gpt

ROWS = 6
Dims = tuple[int, ...]


def products(function: Callable[..., Any], *arguments: Any) -> list[tuple[Dims, ...]]:
    """Return the shapes of the operands of each matrix product, in its order."""
    return [
        tuple(operand.aval.shape for operand in equation.operands)
        for equation in flat(jax.make_jaxpr(function)(*arguments)).equations
        if equation.primitive == "dot_general"
    ]


def flat(traced: ClosedJaxpr) -> FlatJaxpr:
    return flatten(traced, unroll=True)


def arrays(*shapes: Sequence[int]) -> list[jax.Array]:
    generator = np.random.default_rng(0)
    return [jnp.asarray(generator.standard_normal(shape)) for shape in shapes]


def over_rows(x: jax.Array, g: jax.Array) -> jax.Array:
    return jnp.tensordot(x, g, ((0,), (0,)))


def stage_functions(model: Model, **options: Any) -> StageFunctions:
    stage = Stage(model=model, index=0, num_stages=1, layers=range(2), **options)
    work = Work(microbatch=MICROBATCH, sequence=SEQUENCE, batch=2, num_steps=2, seed=SEED)
    return StageFunctions(stage=stage, work=work, optimizer=OptimizerConfig())


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_products, "LEAST_COPIED", 0)


# Few shapes: each is compiled.
dims = st.sampled_from([(2,), (3,), (2, 3), (3, 1)])


@settings(max_examples=40)
@given(m=dims, n=dims, thin=dims, copied=st.booleans(), data=st.data())
def test_results_are_those_of_the_function(
    m: Dims, n: Dims, thin: Dims, copied: bool, data: st.DataObject
):
    order = data.draw(st.sampled_from(list(permutations(range(len(m + n))))))
    of_right, is_first = data.draw(st.booleans()), data.draw(st.booleans())
    summed = n if of_right else m
    # The dims of the factor, as they lie in the transposed product.
    places = [order.index(dim + (len(m) if of_right else 0)) for dim in range(len(summed))]
    others = data.draw(st.permutations(range(len(summed))))

    def function(x: jax.Array, g: jax.Array, other: jax.Array) -> tuple[jax.Array, ...]:
        product = jnp.transpose(over_rows(x, g), order)
        paired = [places[dim] for dim in others]
        last = tuple(range(other.ndim - len(summed), other.ndim))
        if is_first:
            return jnp.tensordot(product, other, (paired, last)), product + 1
        return jnp.tensordot(other, product, (last, paired)), product * 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_products, "LEAST_COPIED", 0)
        with jax.enable_x64(True):
            given_arrays = arrays((ROWS, *m), (ROWS, *n), (*thin, *(summed[dim] for dim in others)))
            expected = function(*given_arrays)
            results = fast_row_products(function, copied=copied)(*given_arrays)
    for result, exact in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, exact, rtol=1e-12, atol=1e-12)


def test_a_thin_product_goes_through_one_factor_and_a_wide_one_does_not():
    x, g, thin, wide = arrays((ROWS, 8), (ROWS, 9), (1, 9), (9, 9))
    fast = fast_row_products(lambda x, g, b: over_rows(x, g) @ b.T, copied=False)
    assert products(fast, x, g, thin) == [((6, 9), (9, 1)), ((6, 8), (6, 1))]
    assert products(fast, x, g, wide) == [((6, 8), (6, 9)), ((8, 9), (9, 9))]


def test_gradients_of_adapters_never_form_that_of_their_kernel():
    lora = LoraConfig(rank=1, targets=("mlp.*",))
    functions = stage_functions(tuned(tiny_gpt(tied=True), lora=lora, frozen=()))
    compute = jax.eval_shape(lambda: functions.cast(functions.init()[0]))
    data = (functions.work.inputs, functions.work.targets, jax.ShapeDtypeStruct((2,), jnp.int32))
    _, residuals = jax.eval_shape(functions.forward, compute, *data)
    loss = functions.loss_cotangent()
    arguments = (compute, residuals, loss, jax.eval_shape(functions.zeros))
    kernels = {leaf["kernel"].shape for leaf in compute["blocks"][0]["mlp"].values()}

    def formed(function: Callable[..., Any]) -> set[Dims]:
        shapes = [tuple(s[1:] for s in factors) for factors in products(function, *arguments)]
        return {left + right for left, right in shapes} & (kernels | {k[::-1] for k in kernels})

    assert formed(functions.backward)
    assert not formed(fast_row_products(functions.backward, copied=False))


def test_the_smaller_factor_is_copied_or_the_result_is_kept_in_order(every_size: None):
    fast = fast_row_products(over_rows, copied=True)
    # x^T g as (x^T) g, and as ((g^T) x)^T where that writes less.
    assert products(fast, *arrays((ROWS, 8), (ROWS, 9))) == [((8, 6), (6, 9))]
    assert products(fast, *arrays((60, 50), (60, 2))) == [((2, 60), (60, 50))]
    turned = fast_row_products(lambda x, g: over_rows(x, g).T, copied=True)
    assert products(turned, *arrays((ROWS, 8), (ROWS, 9))) == [((9, 6), (6, 8))]


def test_small_products_stay_as_they_are():
    fast = fast_row_products(over_rows, copied=True)
    x, g = arrays((ROWS, 8), (ROWS, 9))
    assert prod((*x.shape, 9)) < row_products.LEAST_COPIED
    assert products(fast, x, g) == [((6, 8), (6, 9))]
    np.testing.assert_array_equal(fast(x, g), over_rows(x, g))


def test_products_within_a_scan_are_fast_as_well(every_size: None):
    def function(x: jax.Array, g: jax.Array) -> tuple[Any, jax.Array]:
        return jax.lax.scan(lambda c, layer: (c + 1, over_rows(layer[0], layer[1])), 0.0, (x, g))

    x, g = arrays((3, ROWS, 4), (3, ROWS, 5))
    fast = fast_row_products(function, copied=True)
    assert products(fast, x, g) == [((4, 6), (6, 5))] * 3
    for result, expected in zip(fast(x, g), function(x, g), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loop", Loop)
def test_gradients_of_a_stage_are_those_of_its_backward(loop: Loop, every_size: None):
    functions = stage_functions(tiny_gpt(tied=True), remat=Remat.FULL, loop=loop)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (MICROBATCH, SEQUENCE), np.int32)
    compute = functions.cast(functions.init()[0])
    _, residuals = jax.jit(functions.forward)(compute, tokens, tokens, np.zeros(2, np.int32))
    arguments = (compute, residuals, functions.loss_cotangent(), functions.zeros())
    _, expected = jax.jit(functions.backward)(*arguments)
    _, gradients = jax.jit(fast_row_products(functions.backward, copied=True))(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradients, expected
    )


def test_a_product_in_half_precision_that_is_read_in_float32_is_not_rounded():
    x, g, gradients = arrays((ROWS, 3), (ROWS, 5), (3, 5))
    half = (x.astype(jnp.bfloat16), g.astype(jnp.bfloat16))

    def added(x: jax.Array, g: jax.Array, gradients: jax.Array) -> jax.Array:
        # Of a kernel (inputs, outputs), the gradient is traced as that of (outputs, inputs).
        return gradients + over_rows(g, x).T.astype(jnp.float32)

    exact = gradients + over_rows(*(factor.astype(jnp.float32) for factor in half))
    result = fast_row_products(added, copied=False)(*half, gradients)
    np.testing.assert_allclose(result, exact, rtol=1e-6)
    rounded = added(*half, gradients)
    assert abs(rounded - exact).max() > 1e-3
    # XLA for the CPU has no such products of every shape.
    np.testing.assert_array_equal(fast_row_products(added, copied=True)(*half, gradients), rounded)


def test_a_product_that_is_read_in_half_precision_stays_in_it():
    x, g = (array.astype(jnp.bfloat16) for array in arrays((ROWS, 3), (ROWS, 5)))
    assert fast_row_products(over_rows, copied=False)(x, g).dtype == jnp.bfloat16
    doubled = fast_row_products(lambda x, g: over_rows(x, g) * 2, copied=False)(x, g)
    np.testing.assert_array_equal(doubled, over_rows(x, g) * 2)


def test_a_sum_in_half_precision_is_computed_in_float32():
    def of_bias(g: jax.Array) -> jax.Array:
        return jax.lax.reduce_sum(g, (0,))  # as the gradient of a bias is traced

    (g,) = (array.astype(jnp.bfloat16) for array in arrays((ROWS, 5)))
    equations = flat(jax.make_jaxpr(fast_row_products(of_bias, copied=True))(g)).equations
    (total,) = (equation for equation in equations if equation.primitive == "reduce_sum")
    assert [operand.aval.dtype for operand in total.operands] == [jnp.float32]
    assert fast_row_products(of_bias, copied=True)(g).dtype == jnp.bfloat16
