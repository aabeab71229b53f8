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
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive, Var

from jaxpipe.autoshard.graph.rule import Form, Rule
from jaxpipe.autoshard.graph.rules import rule_of
from jaxpipe.autoshard.graph.subjaxpr import called

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
        inner = called(eqn)
        if inner is None:
            avals = [var.aval for var in eqn.outvars]
            return self._append(eqn.primitive.name, eqn.primitive, eqn.params, inputs, avals)
        params = eqn.params
        if params.get("prevent_cse") and params.get("differentiated"):
            inputs = self._append(BARRIER, None, {}, inputs, inner.in_avals)
        return self.inline(inner.jaxpr, inner.consts, inputs)

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
        return rule_of(name, Form(operands=operands, results=results, params=params))


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
