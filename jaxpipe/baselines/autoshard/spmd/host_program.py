"""A sharded step cut into segments between its collectives, for a host that runs them one by one.

The step of one rank is a flat list of equations, collectives among them. Equations that come after
the same collectives, and before the same others, are one *segment*::

    half a    segment 0 ─ all-to-all ─ segment 2 ─ all-to-all ─ ...
    half b    segment 1 ─ all-to-all ─ segment 3 ─ ...

A segment can be computed when its collectives are over, and a collective can start when the
segments that make its operand have been computed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import Array

from jaxpipe.errors import PlanError
from jaxpipe.jaxpr import Equation, FlatJaxpr, Variable, compute, read

COLLECTIVES: Final = frozenset(("psum", "all_gather", "all_to_all", "reduce_scatter"))
_REFUSED: Final = frozenset(("pmax", "pmin", "ppermute", "ragged_all_to_all"))
_Key = tuple[int, int]
"""The collectives before an equation and those after it, as bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostCollective:
    """A collective over all ranks: its primitive, its parameters, operand and result.

    `segment` makes the operand; None for an argument.
    """

    primitive: str
    params: Mapping[str, Any]
    operand: Variable
    result: Variable
    segment: int | None

    @property
    def num_bytes(self) -> int:
        """The larger of one rank's input and output."""
        arrays = (self.operand.aval, self.result.aval)
        return max(prod(array.shape) * array.dtype.itemsize for array in arrays)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """Equations between collectives, jitted: `run` takes the `inputs` and returns the `outputs`.

    `after` are the segments, `collectives` the collectives that make the inputs.
    """

    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    run: Callable[..., tuple[Array, ...]]
    after: tuple[int, ...]
    collectives: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostProgram:
    """The segments and collectives of a step of one rank."""

    flat: FlatJaxpr
    segments: tuple[Segment, ...]
    collectives: tuple[HostCollective, ...]


def host_program(flat: FlatJaxpr, *, rank: int) -> HostProgram:
    """Cut the flat jaxpr of a step of one rank at its collectives.

    Raises:
        PlanError: a collective is of a kind that is not run by the host.
    """
    for equation in flat.equations:
        if equation.primitive in _REFUSED:
            raise PlanError(
                f"cannot run `{equation.primitive}` on the host, only "
                f"{', '.join(sorted(COLLECTIVES))}; choose a strategy without it"
            )
    parts = [
        (equation, position)
        for equation in flat.equations
        if equation.primitive in COLLECTIVES
        for position in range(len(equation.operands))
    ]
    number = {equation.results[position]: index for index, (equation, position) in enumerate(parts)}
    groups = _groups(flat, number)
    home = {
        result: index
        for index, equations in enumerate(groups)
        for equation in equations
        for result in equation.results
    }
    outside = set(flat.results) | {equation.operands[position] for equation, position in parts}
    for index, equations in enumerate(groups):
        for equation in equations:
            outside.update(operand for operand in equation.operands if home.get(operand) != index)
    return HostProgram(
        flat=flat,
        segments=tuple(_segment(group, outside, home, number, rank) for group in groups),
        collectives=tuple(
            HostCollective(
                primitive=equation.primitive,
                params=equation.params,
                operand=equation.operands[position],
                result=equation.results[position],
                segment=home.get(equation.operands[position]),
            )
            for equation, position in parts
        ),
    )


def _groups(flat: FlatJaxpr, number: Mapping[Variable, int]) -> list[list[Equation]]:
    """Return the equations of each segment, in the order of the first of each."""
    # Integers as sets: a step has thousands of equations and tens of collectives.
    before: dict[Variable, int] = {}
    for equation in flat.equations:
        bits = 0
        for operand in equation.operands:
            bits |= before.get(operand, 0)
        for result in equation.results:
            before[result] = bits | (1 << number[result] if result in number else 0)
    after: dict[Variable, int] = {}
    groups: dict[_Key, list[Equation]] = {}
    keys: dict[int, _Key] = {}
    for position, equation in reversed(list(enumerate(flat.equations))):
        bits = 0
        for result in equation.results:
            bits |= after.get(result, 0) | (1 << number[result] if result in number else 0)
        for operand in equation.operands:
            after[operand] = after.get(operand, 0) | bits
        if equation.primitive not in COLLECTIVES:
            keys[position] = (before[equation.results[0]], bits)
    for position in sorted(keys):
        groups.setdefault(keys[position], []).append(flat.equations[position])
    return [*groups.values()]


def _segment(
    equations: Sequence[Equation],
    outside: set[Variable],
    home: Mapping[Variable, int],
    number: Mapping[Variable, int],
    rank: int,
) -> Segment:
    made = {result for equation in equations for result in equation.results}
    inputs = dict.fromkeys(
        operand
        for equation in equations
        for operand in equation.operands
        if operand not in made and not operand.is_constant
    )
    outputs = tuple(
        result for equation in equations for result in equation.results if result in outside
    )

    def run(*arrays: Array) -> tuple[Array, ...]:
        values: dict[Variable, Any] = dict(zip(inputs, arrays, strict=True))
        for equation in equations:
            operands = [read(values, operand) for operand in equation.operands]
            values.update(zip(equation.results, _computed(equation, operands, rank), strict=True))
        return tuple(values[output] for output in outputs)

    return Segment(
        inputs=tuple(inputs),
        outputs=outputs,
        run=jax.jit(run),
        after=tuple(sorted({home[array] for array in inputs if array in home})),
        collectives=tuple(sorted(number[array] for array in inputs if array in number)),
    )


def _computed(equation: Equation, operands: Sequence[Array], rank: int) -> Sequence[Array]:
    if equation.source is None:  # the barrier before a recomputation
        return jax.lax.optimization_barrier(tuple(operands))
    if equation.primitive == "axis_index":
        return (jnp.int32(rank),)  # of the only axis with several ranks
    return compute(equation, operands)
