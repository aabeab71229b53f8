"""Rules, held against what each piece computes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.graph import Operator, trace_step
from jaxpipe.baselines.autoshard.graph.reshape import reshape_rule
from jaxpipe.baselines.autoshard.spmd import initial_state, train_step
from jaxpipe.baselines.autoshard.spmd.program import trace_program
from jaxpipe.baselines.gpt.alpa_gpt import AlpaGpt
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig

TABLE, ROWS = (8, 6), (4, 2)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "product": (lambda x, y: x @ y, ((4, 6), (6, 2))),
    "batched product": (lambda x, y: jnp.einsum("bqhd,bkhd->bhqk", x, y), ((2, 4, 2, 6),) * 2),
    "transpose": (lambda x: x.transpose(2, 0, 1), ((2, 4, 6),)),
    "elementwise": (lambda x, y: x * y, ((4, 6), (4, 6))),
    "grown": (lambda x, y: x * y, ((4, 6), (1, 6))),
    "sum": (lambda x: x.sum((0, 2)), ((4, 2, 6),)),
    "broadcast": (lambda x: jnp.broadcast_to(x, (4, 6, 2)), ((6, 2),)),
    "merge": (lambda x: x.reshape(8, 6), ((4, 2, 6),)),
    "cut": (lambda x: x.reshape(4, 2, 3, 4), ((4, 24),)),
    "slice": (lambda x: x[:, 1:3], ((4, 6),)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], axis=1), ((4, 2), (4, 6))),
    "stack": (lambda x, y: jnp.stack([x, y], axis=1), ((4, 6), (4, 6))),
    "tile": (lambda x: jnp.tile(x, (1, 3)), ((4, 6),)),
    "cumulate": (lambda x: jnp.cumsum(x, axis=1), ((4, 6),)),
    "reverse": (lambda x: x[:, ::-1], ((4, 6),)),
}
# Elementwise primitives that only some versions of JAX have.
FUNCTIONS |= {
    name: (getattr(jax.lax, name), ((4, 6),))
    for name in ("one_minus_square",)
    if hasattr(jax.lax, name)
}


def operators_of(function: Callable[..., Any], *arguments: Any) -> tuple[Operator, ...]:
    names = [f"x{number}" for number in range(len(arguments))]
    return trace_step(function, *arguments, names=names, result_names=("y",)).operators


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("num_devices", [2, 4])
def test_pieces_make_up_the_result(name: str, num_devices: int) -> None:
    function, shapes = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 9, shape).astype(np.float32) for shape in shapes]
    (operator,) = operators_of(function, *arrays)
    whole, rule = np.asarray(function(*arrays)), operator.rule
    for factor, size in enumerate(rule.sizes):
        if size % num_devices or (name == "broadcast" and factor not in rule.operands[0]):
            continue
        pieces = []
        for device in range(num_devices):
            parts = [
                _piece(array, dims, factor, device, num_devices)
                for array, dims in zip(arrays, rule.operands, strict=True)
            ]
            local = function(*parts) if name not in ("merge", "cut", "broadcast") else None
            pieces.append(_reshaped(name, parts) if local is None else np.asarray(local))
        dims = rule.results[0]
        if factor in dims:
            np.testing.assert_array_equal(np.concatenate(pieces, axis=dims.index(factor)), whole)
        else:
            np.testing.assert_array_equal(sum(pieces), whole)


def _piece(array: Any, dims: Any, factor: int, device: int, num_devices: int) -> Any:
    if factor not in dims:
        return array
    return np.split(array, num_devices, axis=dims.index(factor))[device]


def _reshaped(name: str, parts: list[Any]) -> np.ndarray:
    (part,) = parts
    shape = {
        "merge": (-1, *part.shape[2:]),
        "cut": (part.shape[0], -1, 3, 4),
        "broadcast": (4, *part.shape),
    }
    return np.broadcast_to(part, shape[name]) if name == "broadcast" else part.reshape(shape[name])


def test_a_look_up_may_split_rows_columns_and_indices() -> None:
    table, indices = np.zeros((8, 6)), np.zeros((4, 2), int)
    gather = operators_of(lambda t, i: jnp.take(t, i, axis=0, mode="clip"), table, indices)[-1]
    assert gather.primitive == "gather"
    row, column = gather.rule.operands[0]
    assert row in gather.rule.summed
    assert gather.rule.results[0][-1] == column
    assert gather.rule.results[0][:2] == gather.rule.operands[1][:2]


def test_the_gradient_of_a_look_up_sums_over_indices() -> None:
    def gradient(table: jax.Array, indices: jax.Array, rows: jax.Array) -> jax.Array:
        return table.at[indices].add(rows, mode="promise_in_bounds")

    arrays = np.zeros((8, 6)), np.zeros((4, 2), int), np.zeros((4, 2, 6))
    scatter = operators_of(gradient, *arrays)[-1]
    assert scatter.primitive == "scatter-add"
    assert scatter.rule.results[0] == scatter.rule.operands[0]
    assert set(scatter.rule.operands[1][:2]) == set(scatter.rule.summed)


@given(
    groups=st.lists(
        st.tuples(st.lists(st.integers(1, 4), max_size=3), st.randoms()), min_size=1, max_size=3
    ),
    num_devices=st.integers(2, 4),
)
def test_reshapes_keep_what_each_device_holds(groups: Any, num_devices: int) -> None:
    before = tuple(size for group, _ in groups for size in group)
    after = tuple(size for group, random in groups for size in random.sample(group, k=len(group)))
    rule = reshape_rule(before, after)
    array = np.arange(int(np.prod(before))).reshape(before)
    for factor, size in enumerate(rule.sizes):
        if size % num_devices == 0:
            parts = [
                np.split(array.reshape(shape), num_devices, axis=dims.index(factor))
                for shape, dims in ((before, rule.operands[0]), (after, rule.results[0]))
            ]
            for left, right in zip(*parts, strict=True):
                np.testing.assert_array_equal(left.ravel(), right.ravel())


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unstacked_pieces_make_up_the_results(axis: int) -> None:
    array = np.arange(2 * 4 * 6).reshape(2, 4, 6)
    (operator,) = operators_of(lambda x: jax.lax.unstack(x, axis), array)
    assert operator.rule.sizes == tuple(np.delete(array.shape, axis))
    for factor in range(2):
        dim = operator.rule.operands[0].index(factor)
        halves = [jax.lax.unstack(part, axis) for part in np.split(array, 2, axis=dim)]
        for whole, dims, *parts in zip(
            jax.lax.unstack(array, axis), operator.rule.results, *halves, strict=True
        ):
            joined = np.concatenate(parts, axis=dims.index(factor))
            np.testing.assert_array_equal(joined, whole)


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("model", [Gpt, AlpaGpt])
def test_every_operator_of_a_model_has_a_rule(model: Any, *, remat: bool) -> None:
    """A version of JAX may bring new primitives; without a rule they gather all their operands."""
    config = GptConfig(num_layers=1, dim=16, num_heads=4, sequence=8, vocabulary=32, tied=False)
    optimizer = optax.adam(1e-2)
    state = jax.eval_shape(
        lambda: initial_state(model(config), optimizer, jax.random.key(0), dtype="float16")
    )
    tokens = jax.ShapeDtypeStruct((4, 8), jnp.int32)
    program = trace_program(
        train_step(model(config), optimizer, remat=remat), state, tokens, tokens
    )
    assert {
        each.name
        for each in program.operators
        if each.primitive is not None
        and not each.rule.sizes
        and any(size > 1 for number in each.inputs for size in program.arrays[number].shape)
    } == set()


def test_what_is_not_known_is_whole() -> None:
    (operator,) = operators_of(jnp.linalg.cholesky, np.eye(4))[-1:]
    assert all(factor is None for dims in operator.rule.results for factor in dims) or (
        operator.primitive != "cholesky"
    )
