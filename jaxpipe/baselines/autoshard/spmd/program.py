"""A step as a flat list of operators: calls inlined, scans unrolled, dead ones removed.

Arrays are numbers. `jax.checkpoint` becomes a barrier before the recomputation, so that the
compiler does not merge it with the forward. Operators that depend on no argument are constant: each
device computes them whole. All others, except barriers, correspond to the operators of
`jaxpipe.baselines.autoshard.graph` and have their indices.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive

from jaxpipe.baselines.autoshard.graph import ArrayType
from jaxpipe.baselines.autoshard.graph.rule import EquationForm, Rule
from jaxpipe.baselines.autoshard.graph.rules import rule_of
from jaxpipe.jaxpr import Equation, FlatJaxpr, Variable, flatten, live, varying


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOperator:
    """One operator: a primitive, its parameters, and the numbers of what it reads and writes.

    Args:
        primitive: None for the barrier before a recomputation.
        index: of its equation in the graph of the step; None for barriers and constants.
        rule: the dims that are split together.
        scope: the names of `jax.named_scope` around it, of a backward those of its forward.
    """

    name: str
    primitive: Primitive | None
    params: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: Rule
    index: int | None = None
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProgram:
    """The operators of a step, in an order in which they can run.

    Args:
        operators: each reads arguments, constants and results of earlier ones.
        arguments: the numbers of the arrays that the step is called with.
        results: the numbers of those that it returns.
        constants: the values that are part of the step itself.
        arrays: shape and dtype of every array, by number.
    """

    operators: tuple[ProgramOperator, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    constants: Mapping[int, Any]
    arrays: Mapping[int, jax.ShapeDtypeStruct]


def trace_program(step: Callable[..., Any], *arguments: Any) -> OperatorProgram:
    """Return the operators of a step of these arguments, which may be abstract.

    >>> x = jax.ShapeDtypeStruct((3,), "float32")
    >>> program = trace_program(jax.jit(lambda x: (x + 1) * 2), x)
    >>> [each.name for each in program.operators]
    ['add', 'mul']
    """
    flat = live(flatten(jax.make_jaxpr(step)(*arguments), unroll=True, barriers=True))
    # Numbers in the order of the jaxpr: equal on all processes that trace the step.
    number = {variable: n for n, variable in enumerate(_variables(flat))}
    depends = varying(flat)
    # Must count as `trace_step` does: strategies name operators by these indices.
    indices = count()
    return OperatorProgram(
        operators=tuple(
            _operator(equation, number, index=_index(equation, depends, indices))
            for equation in flat.equations
        ),
        arguments=tuple(number[variable] for variable in flat.arguments),
        results=tuple(number[variable] for variable in flat.results),
        constants={n: atom.value for atom, n in number.items() if atom.is_constant},
        arrays={
            n: jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom, n in number.items()
        },
    )


def array_type(array: jax.ShapeDtypeStruct) -> ArrayType:
    """Return the type of an array of a program; a PRNG key counts no bytes."""
    itemsize = array.dtype.itemsize if isinstance(array.dtype, np.dtype) else 0
    return ArrayType(shape=tuple(array.shape), dtype=str(array.dtype), itemsize=itemsize)


def _variables(flat: FlatJaxpr) -> dict[Variable, None]:
    """Return all variables in order, each once."""
    variables = dict.fromkeys(flat.arguments)
    for equation in flat.equations:
        variables.update(dict.fromkeys((*equation.operands, *equation.results)))
    return variables | dict.fromkeys(flat.results)


def _index(equation: Equation, depends: Set[Variable], indices: Iterator[int]) -> int | None:
    """Return the index that an equation has in the graph, if it is in the graph."""
    if equation.source is None or depends.isdisjoint(equation.operands):
        return None
    return next(indices)


def _operator(
    equation: Equation, number: Mapping[Variable, int], *, index: int | None
) -> ProgramOperator:
    operands, results = (
        tuple(variable.aval.shape for variable in variables)
        for variables in (equation.operands, equation.results)
    )
    form = EquationForm(operands=operands, results=results, params=equation.params)
    return ProgramOperator(
        name=equation.primitive,
        primitive=None if equation.source is None else equation.source.primitive,
        params=equation.params,
        inputs=tuple(number[variable] for variable in equation.operands),
        outputs=tuple(number[variable] for variable in equation.results),
        rule=rule_of(equation.primitive, form),
        index=index,
        scope=equation.scope,
    )
