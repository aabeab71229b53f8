"""Rules, held against what each piece computes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.autoshard.graph import Operator, trace_step
from jaxpipe.autoshard.graph.reshape import reshape_rule

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


def test_what_is_not_known_is_whole() -> None:
    (operator,) = operators_of(jnp.linalg.cholesky, np.eye(4))[-1:]
    assert all(factor is None for dims in operator.rule.results for factor in dims) or (
        operator.primitive != "cholesky"
    )
