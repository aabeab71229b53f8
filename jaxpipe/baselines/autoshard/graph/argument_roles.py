"""The roles of a step's arguments, inferred from their use: parameters, optimizer state, batch.

An argument whose path is a result's too is state. If products depend on it, it is a parameter, else
it belongs to the optimizer: moments, a master copy, a counter. All other arguments are the batch.
"""

from dataclasses import dataclass

from jaxpipe.baselines.autoshard.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The paths of a step's arguments, by role."""

    parameters: tuple[str, ...]
    optimizer: tuple[str, ...]
    batch: tuple[str, ...]


def roles_of(graph: Graph) -> Roles:
    """Return the roles of the arguments of a step."""
    final = final_arrays(graph)
    state = [path for path in graph.arguments if path in graph.results]
    return Roles(
        parameters=tuple(path for path in state if not final[graph.arguments[path]]),
        optimizer=tuple(path for path in state if final[graph.arguments[path]]),
        batch=tuple(path for path in graph.arguments if path not in graph.results),
    )


def final_arrays(graph: Graph) -> tuple[bool, ...]:
    """Return for each array whether no deciding operator depends on it, as for gradients."""
    final = [True] * len(graph.arrays)
    # One pass is enough: backwards, all readers of an array come before the operator that makes it.
    for operator in reversed(graph.operators):
        if operator.deciding or not all(final[result] for result in operator.results):
            for operand in operator.operands:
                if operand is not None:
                    final[operand] = False
    return tuple(final)


def batch_dims(graph: Graph) -> tuple[int | None, ...]:
    """Return for each array the dim of the batch's examples, or None.

    They lie along the first dim of the batch's arguments, and where rules carry it from there.
    """
    dims: list[int | None] = [None] * len(graph.arrays)
    for path in roles_of(graph).batch:
        array = graph.arguments[path]
        if graph.arrays[array].shape:
            dims[array] = 0
    # In the order of the jaxpr: the dims of an operator's operands are known when it is reached.
    for operator in graph.operators:
        factor = batch_factor(operator.operands, operator.rule.operands, dims)
        if factor is not None:
            for result, names in zip(operator.results, operator.rule.results, strict=True):
                if factor in names:
                    dims[result] = names.index(factor)
    return tuple(dims)


def batch_factor(
    operands: tuple[int | None, ...],
    rules: tuple[tuple[int | None, ...], ...],
    dims: list[int | None] | tuple[int | None, ...],
) -> int | None:
    """Return the factor of an operator's rule that is the batch dim, given those of the arrays."""
    # The first operand with a batch dim decides; in a step, operands agree on which dim that is.
    for operand, names in zip(operands, rules, strict=True):
        dim = None if operand is None else dims[operand]
        if dim is not None and names[dim] is not None:
            return names[dim]
    return None
