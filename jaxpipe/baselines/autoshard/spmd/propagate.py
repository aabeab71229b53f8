"""Propagate the shardings of a step's arguments and results to every operator.

Operators are visited in order, and read their operands as they are stored. Where an axis could
split one of several dims, a dim that a result keeps goes before one that is summed, and what was
computed before what was only stored, so that parameters sharded for the sake of memory are gathered
and activations stay where they are. Results that end up in a sharded result of the step, such as
the gradients of a sharded optimizer, are split like it as early as possible: their partial sums are
reduce-scattered.

Shardings that the strategy fixes are used unchanged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jaxpipe.baselines.autoshard.graph.rule import Dims
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, ProgramOperator
from jaxpipe.baselines.autoshard.strategy import (
    Axes,
    Axis,
    MeshShape,
    OperatorChoice,
    PartialSum,
    Sharding,
    replicated,
)

JOINABLE = frozenset(
    ("dot_general", "reduce_sum", "reduce_max", "reduce_min", "gather", "scatter-add")
)
"""Operators that may split a dim that they reduce: their partial results can be reduced."""

_EXTREMES = frozenset(("reduce_max", "reduce_min"))


def propagate(
    program: OperatorProgram,
    mesh: MeshShape,
    *,
    arguments: Mapping[int, Sharding],
    results: Mapping[int, Sharding],
    given: Mapping[int, OperatorChoice],
    scatter: bool,
    split: Mapping[int, Mapping[int, Axes]] = MappingProxyType({}),
) -> tuple[OperatorChoice, ...]:
    """Return a choice for each operator of the program.

    Args:
        program: the step to shard.
        mesh: the devices.
        arguments: the shardings of the arrays of these numbers before the step.
        results: the wanted shardings of the arrays of these numbers after it.
        given: the choices that are fixed, by the index in the graph.
        scatter: whether partial sums may end in a reduce-scatter.
        split: the factors that these operators split, by the index in the graph; all others of
            their factors are whole.
    """
    state = _State(program=program, mesh=mesh, scatter=scatter, split=split)
    state.stored.update(arguments)
    state.light.update(arguments)
    state.wanted.update(_wanted(program, results))
    # Constants are whole everywhere: they may be sliced for free, and must not decide.
    for number in program.constants:
        state.stored[number] = replicated(len(program.arrays[number].shape))
        state.light.add(number)
    return tuple(_decided(operator, state, given) for operator in program.operators)


@dataclass(slots=True, kw_only=True)
class _State:
    """What has been decided so far; `light` are arrays that were stored, not computed."""

    program: OperatorProgram
    mesh: MeshShape
    scatter: bool
    split: Mapping[int, Mapping[int, Axes]]
    stored: dict[int, Sharding] = field(default_factory=dict)
    wanted: dict[int, Sharding] = field(default_factory=dict)
    light: set[int] = field(default_factory=set)


def _decided(
    operator: ProgramOperator, state: _State, given: Mapping[int, OperatorChoice]
) -> OperatorChoice:
    choice = given.get(operator.index) if operator.index is not None else None
    choice = _choose(operator, state) if choice is None else choice
    state.stored.update(zip(operator.outputs, choice.results, strict=True))
    # Casts and transposes of stored arrays are as light.
    if state.light.issuperset(operator.inputs):
        state.light.update(operator.outputs)
    return choice


def _choose(operator: ProgramOperator, state: _State) -> OperatorChoice:
    rule = operator.rule
    split = None if operator.index is None else state.split.get(operator.index)
    split = _split_factors(operator, state) if split is None else split
    summed = frozenset(rule.summed)
    axes = tuple(sorted(axis for factor in summed for axis in split.get(factor, ())))
    results = tuple(_sharding(dims, split) for dims in rule.results)
    operands = tuple(_sharding(dims, split) for dims in rule.operands)
    if not axes:
        return OperatorChoice(operands=operands, results=results)
    return _ended(operator, state, OperatorChoice(operands=operands, results=results), axes)


def _split_factors(operator: ProgramOperator, state: _State) -> dict[int, Axes]:
    """Let each axis split one factor of an array: the first candidate that divides evenly."""
    rule, mesh = operator.rule, state.mesh
    summed = frozenset(rule.summed)
    # Greedy, best candidate first: no split is taken back.
    split: dict[int, Axes] = {}
    for factor, axes in _candidates(operator, state):
        had = split.get(factor, ())  # a factor may only gain inner axes: S0 may become S01, not S10
        if axes[: len(had)] != had or (factor in summed and operator.name not in JOINABLE):
            continue
        # An axis splits one dim of an array.
        taken = {axis for other in _beside(operator, factor) for axis in split.get(other, ())}
        if taken.isdisjoint(axes) and rule.sizes[factor] % mesh.size(axes) == 0:
            split[factor] = axes
    return split


def _beside(operator: ProgramOperator, factor: int) -> set[int]:
    """Return the other factors of an operator, or of that array of a barrier."""
    arrays = (*operator.rule.operands, *operator.rule.results)
    # A barrier passes several arrays on: an axis may split each of them.
    if len(operator.outputs) > 1:
        arrays = tuple(dims for dims in arrays if factor in dims)
    return {other for dims in arrays for other in dims if other is not None} - {factor}


def _candidates(operator: ProgramOperator, state: _State) -> Iterable[tuple[int, Axes]]:
    """Yield the factors that are split in some operand, or wanted so in a result, best first."""
    rule = operator.rule
    summed = frozenset(rule.summed)
    candidates = [
        (number in state.light, factor in summed, factor, axes)
        for number, dims in zip(operator.inputs, rule.operands, strict=True)
        for factor, axes in _split_dims(dims, state.stored[number])
    ]
    # Stable, by two keys: of equal candidates that of the earlier operand goes first.
    for _, _, factor, axes in sorted(candidates, key=lambda candidate: candidate[:2]):
        yield factor, axes
    for number, dims in zip(operator.outputs, rule.results, strict=True):
        if number in state.wanted:
            yield from _split_dims(dims, state.wanted[number])


def _split_dims(dims: Dims, sharding: Sharding) -> list[tuple[int, Axes]]:
    return [
        (factor, axes)
        for factor, axes in zip(dims, sharding.dims, strict=True)
        if factor is not None and axes
    ]


def _sharding(dims: Dims, split: Mapping[int, Axes]) -> Sharding:
    return Sharding(tuple(() if factor is None else split.get(factor, ()) for factor in dims))


def _ended(
    operator: ProgramOperator, state: _State, choice: OperatorChoice, axes: Axes
) -> OperatorChoice:
    """Reduce partial sums: reduce-scatter if the result is wanted split, else all-reduce."""
    (number,), (result,) = operator.outputs, choice.results
    wanted = state.wanted.get(number)
    ended: list[Axis] = []
    ends: list[PartialSum] = []
    # One by one: an axis that cannot be scattered must not keep the other from it.
    for axis in axes:
        dim = None if wanted is None or not state.scatter else wanted.split_dim(axis)
        grown = None if dim is None else _grown(result, dim, axis)
        shape = state.program.arrays[number].shape
        # `psum_scatter` adds: there is none for extremes.
        if operator.name in _EXTREMES or grown is None or not grown.fits(shape, state.mesh):
            ended.append(axis)
        else:
            result = grown
            ends.append(PartialSum(axes=(axis,), scatter_dim=dim))
    # Last, so that it has the bytes of the scattered result.
    if ended:
        ends.append(PartialSum(axes=tuple(ended)))
    return OperatorChoice(operands=choice.operands, results=(result,), partial=tuple(ends))


def _grown(sharding: Sharding, dim: int, axis: Axis) -> Sharding:
    dims = list(sharding.dims)
    dims[dim] = (*dims[dim], axis)
    return Sharding(tuple(dims))


def _wanted(program: OperatorProgram, results: Mapping[int, Sharding]) -> dict[int, Sharding]:
    """Propagate the shardings of the results backwards through elementwise operators."""
    wanted = {number: sharding for number, sharding in results.items() if sharding.axes}
    for operator in reversed(program.operators):
        # Not past a sum: it is where the scatter will happen, its operands need not be split.
        if any(operator.rule.sizes[factor] > 1 for factor in operator.rule.summed):
            continue
        for number, dims in zip(operator.inputs, operator.rule.operands, strict=True):
            carried = _carried(operator, wanted, dims)
            # Of several readers, the one that splits most.
            if carried.axes and len(carried.axes) > len(wanted.get(number, replicated(0)).axes):
                wanted[number] = carried
    return wanted


def _carried(operator: ProgramOperator, wanted: Mapping[int, Sharding], dims: Dims) -> Sharding:
    split: dict[int, Axes] = {}
    for number, result_dims in zip(operator.outputs, operator.rule.results, strict=True):
        if number in wanted:
            split.update(_split_dims(result_dims, wanted[number]))
    return _sharding(dims, split)
