"""Gather and scatter-add of JAX by NumPy.

::

    indices [..., index vector] ─► positions of a window in each dim of the operand ─► windows
    windows [..., window] ─► dims in the order of the equation

Source: the operators Gather and Scatter of StableHLO, whose names of dims are used here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpipe.jaxpr.flatten import Equation

_CLIP, _PROMISED, _DROPPED = "CLIP", "PROMISE_IN_BOUNDS", "FILL_OR_DROP"


def gather_rule(equation: Equation) -> Callable[..., np.ndarray] | None:
    """Return what gathers windows; windows that are not inside of the operand are filled."""
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"].name
    if mode not in (_CLIP, _PROMISED, _DROPPED):
        return None
    operand, out = equation.operands[0].aval, equation.results[0].aval
    sizes = tuple(equation.params["slice_sizes"])
    absent = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window = tuple(size for dim, size in enumerate(sizes) if dim not in absent)
    batch_dims = [dim for dim in range(out.ndim) if dim not in numbers.offset_dims]
    order = (*batch_dims, *numbers.offset_dims)
    fill = _fill(equation)
    windows = _Windows(
        shape=operand.shape,
        sizes=sizes,
        index_map=numbers.start_index_map,
        batching=numbers.operand_batching_dims,
        index_batching=numbers.start_indices_batching_dims,
    )

    def rule(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        positions, is_inside = windows.positions(indices)
        batch = is_inside.shape
        gathered = x[positions]
        if mode == _DROPPED and not is_inside.all():
            gathered = np.where(is_inside.reshape(batch + (1,) * len(sizes)), gathered, fill)
        result = np.empty(out.shape, x.dtype)
        result.transpose(order)[...] = gathered.reshape(batch + window)
        return result

    return rule


def scatter_add_rule(equation: Equation) -> Callable[..., np.ndarray] | None:
    """Return what adds windows to an operand; windows that are not inside of it are dropped."""
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"].name
    if mode not in (_CLIP, _PROMISED, _DROPPED):
        return None
    operand, _, updates = (variable.aval for variable in equation.operands)
    absent = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = iter(updates.shape[dim] for dim in numbers.update_window_dims)
    sizes = tuple(1 if dim in absent else next(window) for dim in range(operand.ndim))
    batch_dims = [dim for dim in range(updates.ndim) if dim not in numbers.update_window_dims]
    order = (*batch_dims, *numbers.update_window_dims)
    windows = _Windows(
        shape=operand.shape,
        sizes=sizes,
        index_map=numbers.scatter_dims_to_operand_dims,
        batching=numbers.operand_batching_dims,
        index_batching=numbers.scatter_indices_batching_dims,
    )

    def rule(x: np.ndarray, indices: np.ndarray, added: np.ndarray) -> np.ndarray:
        positions, is_inside = windows.positions(indices)
        batch = is_inside.shape
        terms = np.transpose(added, order).reshape(batch + sizes)
        if mode == _DROPPED:
            terms = np.where(is_inside.reshape(batch + (1,) * len(sizes)), terms, 0)
        result = np.array(x)
        np.add.at(result, positions, terms)
        return result

    return rule


class _Windows:
    """The windows of some `sizes` in an array of some `shape`, by their first positions."""

    def __init__(
        self,
        *,
        shape: Sequence[int],
        sizes: Sequence[int],
        index_map: Sequence[int],
        batching: Sequence[int],
        index_batching: Sequence[int],
    ) -> None:
        self._shape, self._sizes = shape, sizes
        self._index_map = tuple(index_map)
        self._batching = dict(zip(batching, index_batching, strict=True))

    def positions(self, indices: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Return the positions of all windows, moved inside, and which were inside.

        The positions in each dim have the shape of the batch, then that of a window.
        """
        batch, num_dims = indices.shape[:-1], len(self._shape)
        is_inside = np.ones(batch, bool)
        positions = []
        for dim, (size, length) in enumerate(zip(self._shape, self._sizes, strict=True)):
            first: Any = self._first(dim, indices)
            is_inside &= (first >= 0) & (first <= size - length)
            first = np.clip(first, 0, size - length)
            within = np.arange(length).reshape([-1 if d == dim else 1 for d in range(num_dims)])
            positions.append(first.reshape(batch + (1,) * num_dims) + within)
        return tuple(positions), is_inside

    def _first(self, dim: int, indices: np.ndarray) -> np.ndarray:
        batch = indices.shape[:-1]
        if dim in self._index_map:
            return indices[..., self._index_map.index(dim)].astype(np.int64)
        if dim in self._batching:
            axis = self._batching[dim]
            shape = [-1 if d == axis else 1 for d in range(len(batch))]
            return np.broadcast_to(np.arange(batch[axis]).reshape(shape), batch)
        return np.zeros(batch, np.int64)


def _fill(equation: Equation) -> Any:
    """Return the value of windows that are not inside."""
    given, dtype = equation.params["fill_value"], equation.results[0].aval.dtype
    if given is not None:
        return np.asarray(given, dtype)
    if dtype.kind == "f":
        return np.asarray(np.nan, dtype)
    if dtype.kind == "b":
        return True
    info = np.iinfo(dtype)
    return info.max if dtype.kind == "u" else info.min
