"""Run one operator on the local shards of its operands, inside `shard_map`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import Array

from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, ProgramOperator
from jaxpipe.baselines.autoshard.strategy import Axes, Axis, MeshShape, OperatorChoice, Sharding


def unended(choice: OperatorChoice) -> tuple[Sharding, ...]:
    """Return the shardings of the results before their partial sums are reduced.

    >>> from jaxpipe.baselines.autoshard.strategy import parse_choice
    >>> str(unended(parse_choice("RS1,S1R->RS1 +1>1"))[0])
    'RR'
    """
    results = list(choice.results)
    for end in reversed(choice.partial):
        if end.scatter_dim is not None:
            dims = list(results[0].dims)
            dims[end.scatter_dim] = tuple(a for a in dims[end.scatter_dim] if a not in end.axes)
            results[0] = Sharding(tuple(dims))
    return tuple(results)


def run_locally(
    operator: ProgramOperator,
    choice: OperatorChoice,
    operands: Sequence[Array],
    *,
    program: OperatorProgram,
    mesh: MeshShape,
) -> tuple[Array, ...]:
    """Return the shards of the results, partial sums where the choice says so."""
    primitive = operator.primitive
    if primitive is None:  # the barrier before what is recomputed
        return tuple(jax.lax.optimization_barrier(tuple(operands)))
    shapes = [
        sharding.local_shape(program.arrays[number].shape, mesh)
        for number, sharding in zip(operator.outputs, unended(choice), strict=True)
    ]
    special = _SPECIAL.get(operator.name)
    if special is not None:
        return (special(operator, choice, operands, shapes[0], mesh),)
    adapt = _ADAPT.get(operator.name)
    # The parameters that hold sizes of the global arrays.
    params = dict(operator.params) | ({} if adapt is None else adapt(operator, operands, shapes[0]))
    results = primitive.bind(*operands, **params)
    return tuple(results) if primitive.multiple_results else (results,)


def index_along(axes: Axes, mesh: MeshShape) -> Array:
    """Return the index of this device along these axes, the first of which is the outermost."""
    index = jnp.int32(0)
    for axis in axes:
        index = index * mesh.sizes[axis] + jax.lax.axis_index(axis.label)
    return index


def _new_sizes(
    _operator: ProgramOperator, _operands: Sequence[Array], shape: Any
) -> dict[str, Any]:
    return {"new_sizes": shape}


def _shape(_operator: ProgramOperator, _operands: Sequence[Array], shape: Any) -> dict[str, Any]:
    return {"shape": shape}


def _slice(operator: ProgramOperator, operands: Sequence[Array], _shape: Any) -> dict[str, Any]:
    """A dim that is split is not sliced."""
    limits = operator.params["limit_indices"]
    return {
        # A whole slice of a split dim ends with the shard.
        "limit_indices": tuple(map(min, limits, operands[0].shape)),
    }


def _slice_sizes(
    _operator: ProgramOperator, _operands: Sequence[Array], shape: Any
) -> dict[str, Any]:
    return {"slice_sizes": shape}


def _gather(
    operator: ProgramOperator,
    choice: OperatorChoice,
    operands: Sequence[Array],
    _shape: Any,
    mesh: MeshShape,
) -> Array:
    """Look up rows of a table that may be split by rows; rows of other devices give zeros."""
    table, indices = operands
    numbers = operator.params["dimension_numbers"]
    params = dict(operator.params)
    sizes = list(params["slice_sizes"])
    for dim, size in enumerate(table.shape):
        if dim not in numbers.collapsed_slice_dims and dim not in numbers.operand_batching_dims:
            sizes[dim] = min(sizes[dim], size)
    params["slice_sizes"] = tuple(sizes)
    local, is_split = _own_indices(
        numbers.start_index_map, choice.operands[0], table, indices, mesh
    )
    if is_split:
        # Zeros: the all-reduce adds the row of the one device that has it.
        params |= {"mode": jax.lax.GatherScatterMode.FILL_OR_DROP, "fill_value": 0}
    assert operator.primitive is not None
    return operator.primitive.bind(table, local, **params)


def _scatter_add(
    operator: ProgramOperator,
    choice: OperatorChoice,
    operands: Sequence[Array],
    _shape: Any,
    mesh: MeshShape,
) -> Array:
    """Add to the local rows; of devices with partial sums, only the first starts from the table."""
    table, indices, updates = operands
    numbers = operator.params["dimension_numbers"]
    params = dict(operator.params)
    # Otherwise the reduction would add the table once for each device.
    if choice.partial_axes:
        is_first = index_along(choice.partial_axes, mesh) == 0
        table = jnp.where(is_first, table, jnp.zeros_like(table))
    local, is_split = _own_indices(
        numbers.scatter_dims_to_operand_dims, choice.operands[0], table, indices, mesh
    )
    if is_split:
        params["mode"] = jax.lax.GatherScatterMode.FILL_OR_DROP
    assert operator.primitive is not None
    return operator.primitive.bind(table, local, updates, **params)


def _own_indices(
    coordinates: Sequence[int], sharding: Sharding, table: Array, indices: Array, mesh: MeshShape
) -> tuple[Array, bool]:
    """Index rows from the first local one; rows of other devices are out of bounds."""
    is_split = any(sharding.dims[dim] for dim in coordinates)
    if not is_split:
        return indices, False
    # Local rows: device i has those from i * rows on.
    firsts = [index_along(sharding.dims[dim], mesh) * table.shape[dim] for dim in coordinates]
    # int32: tables have fewer than 2**31 rows.
    signed = indices.astype(jnp.int32) - jnp.stack(firsts)
    # A negative index is not one from the end here, but one of another device.
    return jnp.where(signed < 0, jnp.int32(2**31 - 1), signed), True


_Adapt = Callable[[ProgramOperator, Sequence[Array], Any], dict[str, Any]]
_Special = Callable[[ProgramOperator, OperatorChoice, Sequence[Array], Any, MeshShape], Array]

_ADAPT: Final[Mapping[str, _Adapt]] = MappingProxyType(
    {
        "broadcast_in_dim": _shape,
        "dynamic_slice": _slice_sizes,
        "reshape": _new_sizes,
        "slice": _slice,
    }
)
_SPECIAL: Final[Mapping[str, _Special]] = MappingProxyType(
    {"gather": _gather, "scatter-add": _scatter_add}
)


def sliced(piece: Array, dim: int, axes: tuple[Axis, ...], mesh: MeshShape) -> Array:
    """Return this device's part of a dim that is replicated along these axes."""
    size = piece.shape[dim] // mesh.size(axes)
    return jax.lax.dynamic_slice_in_dim(piece, index_along(axes, mesh) * size, size, dim)
