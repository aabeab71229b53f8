"""Trace a step into its graph, given the shapes of its arguments."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from jaxpipe.baselines.autoshard.graph.graph import ArrayType, Graph, Operator
from jaxpipe.baselines.autoshard.graph.rule import EquationForm, Rule
from jaxpipe.baselines.autoshard.graph.rules import rule_of
from jaxpipe.errors import PlanError
from jaxpipe.jaxpr import Equation, Variable, flatten, live, varying

_DECIDING = frozenset(("dot_general", "gather", "scatter-add", "scatter_add"))


def trace_step(
    step: Callable[..., Any], *arguments: Any, names: Sequence[str], result_names: Sequence[str]
) -> Graph:
    """Return the graph of a step; shapes and dtypes of its arguments are enough.

    `names` are those of the arguments, `result_names` those of what the step returns (one name for
    a single result). Equations that no result needs are left out.

    >>> x, w = jax.ShapeDtypeStruct((4, 8), "float32"), jax.ShapeDtypeStruct((8, 2), "float32")
    >>> step = lambda x, params: x @ params["up"]
    >>> graph = trace_step(step, x, {"up": w}, names=("x", "params"), result_names=("y",))
    >>> graph.arguments, graph.results, graph.flops
    ({'x': 0, 'params.up': 1}, {'y': 2}, 128.0)

    Raises:
        PlanError: there are not as many names as arguments, or as results.
    """
    closed, shapes = jax.make_jaxpr(step, return_shape=True)(*arguments)
    outputs = (shapes,) if len(result_names) == 1 else shapes
    argument_paths = _paths(arguments, names, "names")
    result_paths = _paths(outputs, result_names, "result_names")
    # Unrolled: operators of each iteration of a scan may be sharded in their own way.
    flat = live(flatten(closed, unroll=True))
    # Equations without arguments (iota, constants) cost each device the same: no choice to search.
    depends = varying(flat)
    equations = [
        equation for equation in flat.equations if not depends.isdisjoint(equation.operands)
    ]
    number: dict[Variable, int] = {}
    for array in (
        *flat.arguments,
        *(result for equation in equations for result in equation.results),
    ):
        number[array] = len(number)
    return Graph(
        arrays=tuple(_type_of(array.aval) for array in number),
        operators=tuple(_operator(i, equation, number) for i, equation in enumerate(equations)),
        arguments={
            path: number[array] for path, array in zip(argument_paths, flat.arguments, strict=True)
        },
        results={
            path: number[array]
            for path, array in zip(result_paths, flat.results, strict=True)
            if array in depends
        },
    )


def path_name(name: str, keys: Any) -> str:
    """Return the path of a leaf: the name of its tree and its keys, joined by dots.

    >>> keys = jax.tree_util.tree_leaves_with_path({"blocks": [{"up": 1.0}]})[0][0]
    >>> path_name("params", keys)
    'params.blocks.0.up'
    """
    rest = jax.tree_util.keystr(keys, simple=True, separator=".")
    return f"{name}.{rest}" if rest else name


def _paths(trees: Sequence[Any], names: Sequence[str], field: str) -> list[str]:
    if len(trees) != len(names):
        raise PlanError(
            f"`{field}` has a name for each tree: there are {len(trees)} trees, the names are "
            f"{list(names)}; name them all"
        )
    return [
        path_name(name, keys)
        for name, tree in zip(names, trees, strict=True)
        for keys, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _operator(index: int, equation: Equation, number: dict[Variable, int]) -> Operator:
    operands = tuple(tuple(operand.aval.shape) for operand in equation.operands)
    results = tuple(tuple(result.aval.shape) for result in equation.results)
    rule = rule_of(
        equation.primitive, EquationForm(operands=operands, results=results, params=equation.params)
    )
    return Operator(
        index=index,
        primitive=equation.primitive,
        operands=tuple(number.get(operand) for operand in equation.operands),
        results=tuple(number[result] for result in equation.results),
        rule=rule,
        flops=_flops(equation.primitive, rule),
        deciding=equation.primitive in _DECIDING,
        remat=equation.remat,
    )


def _flops(primitive: str, rule: Rule) -> float:
    """Count a multiplication and an addition for each combination of a product's factors."""
    return 2.0 * prod(rule.sizes) if primitive == "dot_general" else 0.0


def _type_of(aval: Any) -> ArrayType:
    """Return the type of an array; a PRNG key counts no bytes."""
    dtype = aval.dtype
    itemsize = dtype.itemsize if isinstance(dtype, np.dtype) else 0
    return ArrayType(shape=tuple(aval.shape), dtype=str(dtype), itemsize=itemsize)
