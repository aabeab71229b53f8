"""The two parts of a backward give the gradients of the whole, and no more work than it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.blas import chosen_products
from jaxpipe.runtime.blas.product_lowering import use_products
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.split_backward import SplitBackward, split_backward
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.vjp import backward_from_residuals, forward_with_residuals
from jaxpipe.schedule import Remat

pytestmark = pytest.mark.slow

WORK = Work(microbatch=2, sequence=16, batch=4, num_steps=1, seed=1)


def stage_functions(
    *, index: int, num_stages: int, dim: int, remat: Remat, loop: Loop
) -> StageFunctions:
    config = GptConfig(
        num_layers=2 * num_stages,
        dim=dim,
        num_heads=2,
        sequence=WORK.sequence,
        vocabulary=32,
        tied=True,
        dropout=0.1,
    )
    stage = Stage(
        model=Gpt(config),
        index=index,
        num_stages=num_stages,
        layers=range(2 * index, 2 * index + 2),
        remat=remat,
        loop=loop,
    )
    return StageFunctions(stage=stage, work=WORK, optimizer=OptimizerConfig())


def forward_arguments(functions: StageFunctions) -> tuple[Any, ...]:
    stage = functions.stage
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 32, (WORK.microbatch, WORK.sequence)).astype(np.int32)
    shape = functions.activation().shape
    x = tokens if stage.is_first else generator.standard_normal(shape).astype(np.float32)
    targets = tokens if stage.is_last else None
    data = jax.tree.map(jnp.asarray, (x, targets, np.array((0, 0), np.int32)))
    compute = jax.jit(lambda: functions.cast(stage.init(seed=1)))()
    return compute, *data


def num_flops(function: Callable, *arguments: Any) -> float:
    use_products({chosen_products.SWITCH: "off"})  # XLA counts no calls of a BLAS
    costs = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert costs is not None
    return costs["flops"]


def both_parts(split: SplitBackward, residuals: Any, weights: Any, cotangent: Any) -> Any:
    of_input, crossing = jax.jit(split.input_part)(residuals, weights, cotangent)
    carried = split.carry(residuals, cotangent, crossing)
    return jax.jit(split.weight_part)(carried, weights), of_input


@pytest.mark.parametrize(
    ("index", "num_stages", "remat", "loop"),
    [
        (0, 1, Remat.NONE, Loop.SCAN),
        (0, 3, Remat.FULL, Loop.UNROLLED),
        (1, 3, Remat.DOTS, Loop.SCAN),
        (2, 3, Remat.NONE, Loop.UNROLLED),
    ],
)
def test_two_parts_of_a_stage_give_the_gradients_of_its_backward(
    index: int, num_stages: int, remat: Remat, loop: Loop
):
    functions = stage_functions(index=index, num_stages=num_stages, dim=8, remat=remat, loop=loop)
    compute, *data = forward_arguments(functions)
    output, residuals = jax.jit(functions.forward)(compute, *data)
    cotangent = jnp.cos(jnp.arange(output.size, dtype=output.dtype)).reshape(output.shape)
    split = functions.split_backward(compute, residuals, cotangent)
    found = both_parts(split, residuals, compute, cotangent)
    expected = jax.jit(backward_from_residuals)(residuals, compute, cotangent)
    assert jax.tree.structure(found) == jax.tree.structure(tuple(expected))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )


@pytest.mark.parametrize(
    ("index", "remat", "loop", "most_in_input_part"),
    [
        (0, Remat.NONE, Loop.UNROLLED, 0.6),
        (1, Remat.FULL, Loop.SCAN, 0.7),
        (2, Remat.DOTS, Loop.SCAN, 0.6),
    ],
)
def test_neither_part_repeats_the_work_of_the_other(
    index: int, remat: Remat, loop: Loop, most_in_input_part: float
):
    functions = stage_functions(index=index, num_stages=3, dim=128, remat=remat, loop=loop)
    compute, *data = jax.eval_shape(lambda: forward_arguments(functions))
    output, residuals = jax.eval_shape(functions.forward, compute, *data)
    split = functions.split_backward(compute, residuals, output)
    whole = num_flops(backward_from_residuals, residuals, compute, output)
    of_input = num_flops(split.input_part, residuals, compute, output)
    _, crossing = jax.eval_shape(split.input_part, residuals, compute, output)
    carried = split.carry(residuals, output, crossing)
    of_weights = num_flops(split.weight_part, carried, compute)
    assert of_input + of_weights <= 1.03 * whole
    assert of_input <= most_in_input_part * whole


def shared_weights(weights: dict[str, Any], x: Any) -> Any:
    """Apply the same weights in every iteration: their gradients are carries of the backward."""

    def step(x: Any, bias: Any) -> tuple[Any, Any]:
        return jnp.tanh(x @ weights["square"]) + bias, x.sum()

    x, sums = jax.lax.scan(step, x, weights["biases"], reverse=True)
    return x * sums.sum()


def nested(weights: dict[str, Any], x: Any) -> Any:
    """Scan within a scan, within `jit` and `checkpoint`, beside a branch that cannot be cut."""

    def inner(x: Any, bias: Any) -> tuple[Any, None]:
        return jnp.sin(x @ weights["square"] + bias), None

    def outer(x: Any, scale: Any) -> tuple[Any, None]:
        return jax.checkpoint(lambda x: jax.lax.scan(inner, x, weights["biases"])[0])(
            x
        ) * scale, None

    x = jax.jit(lambda x: jax.lax.scan(outer, x, weights["scales"])[0])(x)
    return jax.lax.cond(x.sum() > 0, jnp.sin, lambda x: x @ weights["square"], x)


def two_carries(weights: dict[str, Any], x: Any) -> Any:
    """Carry what the input reaches and what only the weights reach."""

    def step(carry: tuple[Any, Any], bias: Any) -> tuple[tuple[Any, Any], Any]:
        x, own = carry
        own = jnp.sin(own @ weights["square"])
        return (x * jnp.cos(bias) + own, own), own + x

    (x, _), ys = jax.lax.scan(step, (x, weights["square"][:2]), weights["biases"])
    return x + ys.sum(axis=0)


def unused(weights: dict[str, Any], x: Any) -> Any:
    """Leave a weight and all that could be computed later out."""
    return x * 3.0 + 0 * weights["square"].sum()


@pytest.mark.parametrize("function", [shared_weights, nested, two_carries, unused])
def test_any_backward_can_be_split(function: Callable):
    generator = np.random.default_rng(0)
    weights = {
        "square": generator.standard_normal((3, 3)).astype(np.float32),
        "biases": generator.standard_normal((4, 3)).astype(np.float32),
        "scales": generator.standard_normal(2).astype(np.float32),
    }
    x = generator.standard_normal((2, 3)).astype(np.float32)
    output, residuals = jax.jit(forward_with_residuals, static_argnums=0)(function, weights, x)
    cotangent = jnp.cos(output)
    split = split_backward(backward_from_residuals, residuals, weights, cotangent)
    found = both_parts(split, residuals, weights, cotangent)
    expected = jax.vjp(function, weights, x)[1](cotangent)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )


def test_residuals_that_only_the_input_part_reads_are_let_go():
    functions = stage_functions(index=1, num_stages=3, dim=8, remat=Remat.NONE, loop=Loop.SCAN)
    compute, *data = forward_arguments(functions)
    output, residuals = jax.jit(functions.forward)(compute, *data)
    split = functions.split_backward(compute, residuals, output)
    _, crossing = jax.jit(split.input_part)(residuals, compute, output)
    carried = split.carry(residuals, output, crossing)
    kept, crossing = carried.values, carried.crossing

    def num_bytes(tree: Any) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))

    # per layer and token, in dims: the inputs of four products, one of them four dims wide
    assert num_bytes(kept) == 7 * 2 * output.nbytes
    # the gradients of their outputs, 9 dims, and those of biases and norms, added up already
    vectors = [leaf for leaf in jax.tree.leaves(compute["blocks"]) if leaf.ndim == 2]
    assert num_bytes(crossing) == 9 * 2 * output.nbytes + num_bytes(vectors)
    assert 0 < num_bytes(kept) < num_bytes(residuals)
