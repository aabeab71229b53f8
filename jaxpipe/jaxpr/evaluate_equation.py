"""Evaluate a flat jaxpr equation by equation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Literal, jaxpr_as_fun

from jaxpipe.jaxpr.flatten import Equation, Scan, Variable

Values: TypeAlias = dict[Any, Any]
"""Arrays by variable."""


def read(values: Mapping[Any, Any], variable: Variable) -> Any:
    """Return the array of a variable."""
    return variable.value if variable.is_constant else values[variable]


def compute(equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the results of an equation that has a source.

    JAX evaluates it, not `primitive.bind`: equations carry a context (mesh, random numbers) and
    some primitives take functions, which only JAX's own evaluation restores.
    """
    source = equation.source
    assert source is not None, equation
    # A dictionary: an array that is read twice, as in x * x, is one input of the jaxpr.
    inputs = {
        atom: array
        for atom, array in zip(source.invars, operands, strict=True)
        if not isinstance(atom, Literal)  # literals stay in the equation
    }
    info = DebugInfo(
        "equation",
        equation.primitive,
        arg_names=("",) * len(inputs),
        result_paths=("",) * len(source.outvars),
    )
    alone = Jaxpr((), list(inputs), source.outvars, [source], source.effects, debug_info=info)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*inputs.values())


def run_scan(
    scan: Scan, body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any
) -> tuple[Any, Any]:
    """Run another body over the iterations of a scan, in its order."""
    return jax.lax.scan(
        body, carry, xs, length=scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
