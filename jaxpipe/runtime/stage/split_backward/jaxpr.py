"""Runs a traced function, equation by equation, with calls written out where they stand."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import jit_p, remat_p, scan_p

Values: TypeAlias = dict[Any, Any]
"""What each variable of a traced function holds."""


def read(values: Values, atom: Any) -> Any:
    """Return what a variable holds, or the literal itself."""
    return atom.val if isinstance(atom, Literal) else values[atom]


def compute(equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of an equation."""
    holds = {
        atom: array
        for atom, array in zip(equation.invars, inputs, strict=True)
        if not isinstance(atom, Literal)
    }
    info = DebugInfo(
        "equation",
        equation.primitive.name,
        arg_names=("",) * len(holds),
        result_paths=("",) * len(equation.outvars),
    )
    alone = Jaxpr((), list(holds), equation.outvars, [equation], equation.effects, debug_info=info)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*holds.values())


def scan(
    equation: JaxprEqn, body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any
) -> tuple[Any, Any]:
    """Run another body over the iterations of the scan that is `equation`, in its order."""
    params = equation.params
    return jax.lax.scan(
        body,
        carry,
        xs,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )


def variables(atoms: Iterable[Any]) -> frozenset[Var]:
    """Return those that are no literals."""
    return frozenset(atom for atom in atoms if not isinstance(atom, Literal))


def write_out(traced: ClosedJaxpr) -> ClosedJaxpr:
    """Return the same function without the calls that `jit` and `checkpoint` leave behind.

    What is to be recomputed is an equation already, since a backward alone is traced here; the
    barrier that would keep it apart from its forward has nothing left to keep apart.

    >>> import jax.numpy as jnp
    >>> traced = jax.make_jaxpr(jax.jit(lambda x: jax.jit(jnp.sin)(x) * 2))(1.0)
    >>> [equation.primitive.name for equation in write_out(traced).jaxpr.eqns]
    ['sin', 'mul']
    """
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in traced.in_avals]
    return jax.make_jaxpr(partial(_evaluate, traced.jaxpr, traced.consts))(*shapes)


def _evaluate(jaxpr: Jaxpr, constants: Sequence[Any], *inputs: Any) -> list[Any]:
    values: Values = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        evaluate = _EVALUATE.get(equation.primitive, compute)
        outputs = evaluate(equation, [read(values, atom) for atom in equation.invars])
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(values, atom) for atom in jaxpr.outvars]


def _evaluate_jit(equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    closed = equation.params["jaxpr"]
    return _evaluate(closed.jaxpr, closed.consts, *inputs)


def _evaluate_remat(equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    return _evaluate(equation.params["jaxpr"], (), *inputs)


def _evaluate_scan(equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    closed = equation.params["jaxpr"]
    num_consts, num_carry = equation.params["num_consts"], equation.params["num_carry"]
    constants, rest = inputs[:num_consts], inputs[num_consts:]

    def body(carry: Sequence[Any], xs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        outputs = _evaluate(closed.jaxpr, closed.consts, *constants, *carry, *xs)
        return outputs[:num_carry], outputs[num_carry:]

    carry, ys = scan(equation, body, list(rest[:num_carry]), list(rest[num_carry:]))
    return [*carry, *ys]


_EVALUATE: Mapping[Any, Callable[[JaxprEqn, Sequence[Any]], Sequence[Any]]] = {
    jit_p: _evaluate_jit,
    remat_p: _evaluate_remat,
    scan_p: _evaluate_scan,
}
