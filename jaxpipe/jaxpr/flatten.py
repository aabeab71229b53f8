"""Flatten a jaxpr: calls inlined, scans unrolled or flat inside, rematerialized parts marked.

::

    y = jit[ z = sin x            z = sin x
             w = scan[..] z ]     w1 = .. z           unroll: the body once per iteration
    v = mul y 2                   w2 = .. w1
                                  v = mul w2 2

Loops and conditions that depend on values (`while`, `cond`) stay single equations.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from jaxpipe.jaxpr.equation import ScanParameters, called, is_remat, recomputes, scan_of

BARRIER: Final = "optimization_barrier"
_NO_PARAMS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """An array of a flat jaxpr, equal to itself alone; `value` is that of a constant, else None."""

    aval: Any
    value: Any = None

    @property
    def is_constant(self) -> bool:
        """Whether the value is part of the traced function."""
        return self.value is not None  # no array is None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Equation:
    """An equation that calls nothing.

    Args:
        primitive: the name of its primitive.
        operands: what it reads.
        results: what it computes, operand by operand for a barrier.
        source: the equation of JAX; None for a barrier that `flatten` has inserted.
        remat: whether it is computed under `jax.checkpoint`.
        scan: what it iterates over, if it is a scan.
        scope: the names of `jax.named_scope` around it, outermost first; a backward has those of
            its forward, with marks such as "transpose(jvp(up))".
    """

    primitive: str
    operands: tuple[Variable, ...]
    results: tuple[Variable, ...]
    source: JaxprEqn | None
    remat: bool
    scan: "Scan | None" = None
    scope: str = ""

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of the primitive."""
        return _NO_PARAMS if self.source is None else self.source.params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatJaxpr:
    """A function as a flat list of equations, each of which reads what stands before it."""

    arguments: tuple[Variable, ...]
    results: tuple[Variable, ...]
    equations: tuple[Equation, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan:
    """A scan whose body is flat; the operands of both are constants, carries and slices."""

    body: FlatJaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int


def flatten(closed: ClosedJaxpr, *, unroll: bool, barriers: bool = False) -> FlatJaxpr:
    """Return the same function as one list of equations.

    Args:
        closed: the function, as `jax.make_jaxpr` returns it.
        unroll: replace each scan by its iterations; else it stays, with a flat body.
        barriers: insert an optimization barrier before each part that is recomputed, as JAX does,
            so that XLA does not merge it with what the forward computed.

    >>> traced = jax.make_jaxpr(jax.jit(lambda x: jax.jit(jnp.sin)(x) * 2))(1.0)
    >>> [equation.primitive for equation in flatten(traced, unroll=True).equations]
    ['sin', 'mul']
    """
    return _flat(closed, _Flattener(unroll=unroll, barriers=barriers), remat=False)


def live(flat: FlatJaxpr) -> FlatJaxpr:
    """Return the function without what no result needs, neither equations nor lanes of barriers."""
    # Backwards: all readers of a result have been seen when its equation is reached.
    needed = set(flat.results)
    live_equations: list[Equation] = []
    for equation in reversed(flat.equations):
        if needed.isdisjoint(equation.results):
            continue
        trimmed = equation if equation.source is not None else _trimmed(equation, needed)
        needed.update(trimmed.operands)
        live_equations.append(trimmed)
    return replace(flat, equations=tuple(reversed(live_equations)))


def varying(flat: FlatJaxpr) -> Set[Variable]:
    """Return the variables that depend on an argument; all others are the same in every call."""
    varying_atoms = set(flat.arguments)
    for equation in flat.equations:
        if not varying_atoms.isdisjoint(equation.operands):
            varying_atoms.update(equation.results)
    return varying_atoms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flattener:
    """The equations found so far."""

    unroll: bool
    barriers: bool
    equations: list[Equation] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)

    def inline(
        self, closed: ClosedJaxpr, arguments: Sequence[Variable], *, remat: bool
    ) -> tuple[Variable, ...]:
        """Append the equations of a jaxpr with these arguments, and return its results."""
        jaxpr = closed.jaxpr
        # New variables at each call: a jaxpr that is called twice has different arrays in each.
        known: dict[Any, Variable] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
            known[var] = Variable(var.aval, value)
        for equation in jaxpr.eqns:
            operands = tuple(_read(known, atom) for atom in equation.invars)
            # JAX starts an empty stack in each jaxpr: that of a call stands around it.
            self.scopes.append(str(equation.source_info.name_stack))
            results = self._add(equation, operands, remat=remat)
            self.scopes.pop()
            known.update(zip(equation.outvars, results, strict=True))
        return tuple(_read(known, atom) for atom in jaxpr.outvars)

    def _add(
        self, equation: JaxprEqn, operands: tuple[Variable, ...], *, remat: bool
    ) -> tuple[Variable, ...]:
        scan = scan_of(equation)
        if scan is not None and self.unroll:
            # Inlined in turn: the iterations are calls of the body, which may contain scans.
            return self.inline(_unrolled(scan, operands), operands, remat=remat)
        inner = called(equation)
        if inner is not None:
            if self.barriers and recomputes(equation):
                # The part reads the results of the barrier: to XLA, they differ from its operands.
                operands = self._append(None, operands, inner.in_avals, remat=remat)
            return self.inline(inner, operands, remat=remat or is_remat(equation))
        body = None if scan is None else self._scan(scan, remat=remat)
        avals = [var.aval for var in equation.outvars]
        return self._append(equation, operands, avals, remat=remat, scan=body)

    def _append(
        self,
        source: JaxprEqn | None,
        operands: tuple[Variable, ...],
        avals: Sequence[Any],
        *,
        remat: bool,
        scan: Scan | None = None,
    ) -> tuple[Variable, ...]:
        results = tuple(Variable(aval) for aval in avals)
        self.equations.append(
            Equation(
                primitive=BARRIER if source is None else source.primitive.name,
                operands=operands,
                results=results,
                source=source,
                remat=remat,
                scan=scan,
                scope="/".join(filter(None, self.scopes)),
            )
        )
        return results

    def _scan(self, scan: ScanParameters, *, remat: bool) -> Scan:
        inside = _Flattener(unroll=self.unroll, barriers=self.barriers)
        return Scan(
            body=_flat(scan.body, inside, remat=remat),
            num_consts=scan.num_consts,
            num_carry=scan.num_carry,
            length=scan.length,
            reverse=scan.reverse,
            unroll=scan.unroll,
        )


def _flat(closed: ClosedJaxpr, flattener: _Flattener, *, remat: bool) -> FlatJaxpr:
    arguments = tuple(Variable(var.aval) for var in closed.jaxpr.invars)
    results = flattener.inline(closed, arguments, remat=remat)
    return FlatJaxpr(arguments=arguments, results=results, equations=tuple(flattener.equations))


def _read(known: Mapping[Any, Variable], atom: Any) -> Variable:
    return Variable(atom.aval, atom.val) if isinstance(atom, Literal) else known[atom]


def _unrolled(scan: ScanParameters, operands: Sequence[Variable]) -> ClosedJaxpr:
    """Trace the iterations one after the other; `jit` traces the body once for all of them."""
    body: Callable[..., Any] = jax.jit(jaxpr_as_fun(scan.body))
    order = range(scan.length)[::-1] if scan.reverse else range(scan.length)

    def run(*arguments: Any) -> list[Any]:
        consts, rest = arguments[: scan.num_consts], arguments[scan.num_consts :]
        carry, stacked = rest[: scan.num_carry], rest[scan.num_carry :]
        outputs: list[Any] = [None] * scan.length
        for step in order:
            results = body(*consts, *carry, *(values[step] for values in stacked))
            carry, outputs[step] = results[: scan.num_carry], results[scan.num_carry :]
        if not outputs:  # no iteration, so nothing to stack
            sliced = scan.body.out_avals[scan.num_carry :]
            return [*carry, *(jnp.zeros((0, *array.shape), array.dtype) for array in sliced)]
        return [*carry, *(jnp.stack(values) for values in zip(*outputs, strict=True))]

    return jax.make_jaxpr(run)(*(operand.aval for operand in operands))


def _trimmed(barrier: Equation, needed: Set[Variable]) -> Equation:
    lanes = [
        # A lane per operand: an unread result need not wait for the barrier.
        (operand, result)
        for operand, result in zip(barrier.operands, barrier.results, strict=True)
        if result in needed
    ]
    operands, results = zip(*lanes, strict=True)
    return replace(barrier, operands=operands, results=results)
