"""A step as a flat list of operators to run: calls inlined, loops unrolled, dead ones gone.

Arrays are numbers. `jax.checkpoint` becomes a barrier before what it computes again, so that no
compiler merges it with what was computed first. What depends on no argument is constant: each
device computes it whole. The other operators but the barriers are those of
`jaxpipe.autoshard.graph`, one for one, and have its indices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun

from jaxpipe.autoshard.graph.form import Form
from jaxpipe.autoshard.graph.rule import Dims, Rule
from jaxpipe.autoshard.graph.rules import rule_of

BARRIER = "optimization_barrier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator: a primitive, its parameters, and the numbers of what it reads and writes.

    Args:
        primitive: None for the barrier before what is computed again.
        index: of its equation in the graph of the step; None for barriers and constants.
        rule: which dims are split together.
    """

    name: str
    primitive: Primitive | None
    params: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: Rule
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The operators of a step, in an order in which they can run.

    Args:
        operators: each reads what is an argument, a constant or written before.
        arguments: the numbers of the arrays that the step is called with.
        results: the numbers of those that it returns.
        constants: the values that stand in the step itself.
        arrays: shape and dtype of every array, by number.
    """

    operators: tuple[Operator, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    constants: Mapping[int, Any]
    arrays: Mapping[int, jax.ShapeDtypeStruct]


def trace_program(step: Callable[..., Any], *arguments: Any) -> Program:
    """Return the operators of a step of these arguments, which may be abstract.

    >>> x = jax.ShapeDtypeStruct((3,), "float32")
    >>> program = trace_program(jax.jit(lambda x: (x + 1) * 2), x)
    >>> [each.name for each in program.operators]
    ['add', 'mul']
    """
    closed = jax.make_jaxpr(step)(*arguments)
    builder = _Builder()
    numbers = tuple(builder.new(var.aval) for var in closed.jaxpr.invars)
    results = builder.inline(closed.jaxpr, closed.consts, numbers)
    return Program(
        operators=_numbered(_alive(builder.operators, results), numbers),
        arguments=numbers,
        results=results,
        constants=builder.constants,
        arrays=builder.arrays,
    )


@dataclass(slots=True)
class _Builder:
    """What has been inlined so far."""

    operators: list[Operator] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    arrays: dict[int, jax.ShapeDtypeStruct] = field(default_factory=dict)

    def new(self, aval: Any) -> int:
        """Number an array."""
        number = len(self.arrays)
        self.arrays[number] = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        return number

    def constant(self, value: Any, aval: Any) -> int:
        """Number a value that stands in the step."""
        number = self.new(aval)
        self.constants[number] = value
        return number

    def inline(
        self, jaxpr: Jaxpr, consts: Sequence[Any], numbers: Sequence[int]
    ) -> tuple[int, ...]:
        """Add the operators of a jaxpr that reads these arrays; return what it returns."""
        known: dict[Any, int] = dict(zip(jaxpr.invars, numbers, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            known[var] = self.constant(value, var.aval)
        for eqn in jaxpr.eqns:
            inputs = tuple(self._read(known, atom) for atom in eqn.invars)
            known.update(zip(eqn.outvars, self._add(eqn, inputs), strict=True))
        return tuple(self._read(known, atom) for atom in jaxpr.outvars)

    def _read(self, known: Mapping[Any, int], atom: Var | Literal) -> int:
        return self.constant(atom.val, atom.aval) if isinstance(atom, Literal) else known[atom]

    def _add(self, eqn: JaxprEqn, inputs: tuple[int, ...]) -> tuple[int, ...]:
        called = _called(eqn)
        if called is None:
            avals = [var.aval for var in eqn.outvars]
            return self._append(eqn.primitive.name, eqn.primitive, eqn.params, inputs, avals)
        params = eqn.params
        if params.get("prevent_cse") and params.get("differentiated"):
            inputs = self._append(BARRIER, None, {}, inputs, called.in_avals)
        return self.inline(called.jaxpr, called.consts, inputs)

    def _append(
        self,
        name: str,
        primitive: Primitive | None,
        params: Mapping[str, Any],
        inputs: tuple[int, ...],
        avals: Sequence[Any],
    ) -> tuple[int, ...]:
        outputs = tuple(self.new(aval) for aval in avals)
        self.operators.append(
            Operator(
                name=name,
                primitive=primitive,
                params=params,
                inputs=inputs,
                outputs=outputs,
                rule=self._rule(name, params, inputs, outputs),
            )
        )
        return outputs

    def _rule(
        self, name: str, params: Mapping[str, Any], inputs: Sequence[int], outputs: Sequence[int]
    ) -> Rule:
        operands, results = (
            tuple(self.arrays[number].shape for number in numbers) for numbers in (inputs, outputs)
        )
        rule = rule_of(name, Form(operands=operands, results=results, params=params))
        return replace(rule, operands=tuple(map(_whole_ones, rule.operands, operands)))


def _whole_ones(dims: Dims, shape: tuple[int, ...]) -> Dims:
    """Keep dims of size 1 whole: elementwise operators repeat them."""
    return tuple(None if size == 1 else dim for dim, size in zip(dims, shape, strict=True))


def _called(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return what an equation stands for, if it is to be inlined."""
    if eqn.primitive.name == "scan":
        return _unrolled(eqn.params, [atom.aval for atom in eqn.invars])
    if eqn.primitive.name in ("while", "cond"):
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        called = eqn.params.get(name)
        if isinstance(called, ClosedJaxpr):
            return called
        if isinstance(called, Jaxpr):
            return ClosedJaxpr(called, ())
    return None


def _unrolled(params: Mapping[str, Any], avals: Sequence[Any]) -> ClosedJaxpr:
    num_consts, num_carry, length = params["num_consts"], params["num_carry"], params["length"]
    body = jax.jit(jaxpr_as_fun(params["jaxpr"]))
    order = range(length)[::-1] if params["reverse"] else range(length)

    def run(*arguments: Any) -> list[Any]:
        consts, rest = arguments[:num_consts], arguments[num_consts:]
        carry, stacked = rest[:num_carry], rest[num_carry:]
        kept: list[Any] = [None] * length
        for step in order:
            results = body(*consts, *carry, *(each[step] for each in stacked))
            carry, kept[step] = results[:num_carry], results[num_carry:]
        return [*carry, *(jnp.stack(each) for each in zip(*kept, strict=True))]

    return jax.make_jaxpr(run)(*avals)


def _alive(operators: Sequence[Operator], results: Sequence[int]) -> list[Operator]:
    """Return the operators that the results depend on; of a barrier, the arrays that they do."""
    needed = set(results)
    alive: list[Operator] = []
    for operator in reversed(operators):
        if needed.isdisjoint(operator.outputs):
            continue
        kept = operator if operator.primitive else _trimmed(operator, needed)
        needed.update(kept.inputs)
        alive.append(kept)
    return alive[::-1]


def _trimmed(barrier: Operator, needed: set[int]) -> Operator:
    lanes = [lane for lane, number in enumerate(barrier.outputs) if number in needed]
    rule = barrier.rule
    return replace(
        barrier,
        inputs=tuple(barrier.inputs[lane] for lane in lanes),
        outputs=tuple(barrier.outputs[lane] for lane in lanes),
        rule=replace(
            rule,
            operands=tuple(rule.operands[lane] for lane in lanes),
            results=tuple(rule.results[lane] for lane in lanes),
        ),
    )


def _numbered(operators: Sequence[Operator], arguments: Sequence[int]) -> tuple[Operator, ...]:
    """Give each operator that depends on an argument the index that it has in the graph."""
    varying = set(arguments)
    numbered: list[Operator] = []
    index = 0
    for operator in operators:
        kept = operator
        if not varying.isdisjoint(operator.inputs):
            varying.update(operator.outputs)
            if operator.primitive is not None:
                kept = replace(operator, index=index)
                index += 1
        numbered.append(kept)
    return tuple(numbered)
