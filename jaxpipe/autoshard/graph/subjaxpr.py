"""What an equation stands for: the jaxpr that it calls, or the loop that it is, step after step."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

_KEPT = frozenset(("while", "cond"))


def called(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the jaxpr of a call, or of an unrolled scan; None for an operator.

    A loop or a condition whose way is known at run time alone counts as an operator.
    """
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _unrolled(params, [atom.aval for atom in equation.invars])
    if name in _KEPT:
        return None
    inner = next(
        (params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), None
    )
    if isinstance(inner, Jaxpr):
        return ClosedJaxpr(inner, ())
    return inner if isinstance(inner, ClosedJaxpr) else None


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
