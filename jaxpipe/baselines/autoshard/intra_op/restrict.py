"""Restrict the search space: by pins, a forced batch axis, the collective for gradients."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np

from jaxpipe.baselines.autoshard.graph import batch_dims, batch_factor, roles_of
from jaxpipe.baselines.autoshard.intra_op.build_problem import Space, Stored
from jaxpipe.baselines.autoshard.intra_op.problem import restricted
from jaxpipe.baselines.autoshard.strategy import Axis, OperatorChoice, Pins, Sharding
from jaxpipe.errors import PlanError

Mask = tuple[int, np.ndarray]
"""A node, and which of its choices are kept."""


class GradientReduction(StrEnum):
    """The collective that ends partial sums of gradients; `FREE`: the fastest that fits the memory.

    With `REDUCE_SCATTER` each device updates its shard and all-gathers the parameters afterwards,
    wherever a dim divides: Alpa's rewriting, and ZeRO-2.
    """

    FREE = "free"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"


def kept_by(space: Space, masks: Iterable[Mask]) -> Space:
    """Return the space with those choices alone that all masks keep."""
    problem = space.problem
    keep = [np.ones(len(node), dtype=bool) for node in problem.nodes]
    for node, mask in masks:
        keep[node] &= mask
    at = tuple(np.flatnonzero(mask) for mask in keep)
    return replace(
        space,
        problem=restricted(problem, at),
        stored=tuple(Stored(node=s.node, layout=s.layout[at[s.node]]) for s in space.stored),
        choice_numbers=tuple(numbers[at[i]] for i, numbers in enumerate(space.choice_numbers)),
    )


def pinned(space: Space, pins: Pins) -> Space:
    """Return the space in which what is pinned is as pinned.

    Raises:
        PlanError: a pin names nothing, cannot divide its array, or no choice agrees with all pins.
    """
    wanted: dict[int, tuple[str, Sharding]] = {}
    for path, array in space.graph.arguments.items():
        sharding = pins.argument(path)
        if sharding is not None:
            wanted[array] = (f"arguments.{path}", sharding)
    # A pattern with a typo would otherwise fix nothing, silently.
    _refuse_unused(space, pins)
    for index, sharding in pins.operators.items():
        wanted[space.graph.operators[index].results[0]] = (f"operators.{index}", sharding)
    left = [np.ones(len(node), dtype=bool) for node in space.problem.nodes]
    for array, (name, sharding) in wanted.items():
        node, mask = _stored_as(space, array, sharding, name)
        left[node] &= mask
        if not left[node].any():
            raise PlanError(
                f"`{name}` cannot be pinned to {str(sharding)!r}: the other pins leave none of "
                f"{_offered(space, array)} for what is computed with it; remove one of the pins"
            )
    return kept_by(space, enumerate(left))


def _refuse_unused(space: Space, pins: Pins) -> None:
    for pattern in pins.arguments:
        # Only whether the pattern matches counts, not the sharding.
        one = Pins(arguments={pattern: Sharding(())})
        if all(one.argument(path) is None for path in space.graph.arguments):
            raise PlanError(
                f"`arguments.{pattern}` pins nothing: the step has no such argument; its first "
                f"are {', '.join([*space.graph.arguments][:4])}"
            )
    for index in pins.operators:
        if index >= len(space.graph.operators):
            raise PlanError(
                f"`operators.{index}` pins nothing: the step has {len(space.graph.operators)} "
                "operators, counted from 0; look one up in a printed strategy"
            )


def _stored_as(space: Space, array: int, sharding: Sharding, name: str) -> Mask:
    layouts = space.layouts.of(space.graph.arrays[array])
    if sharding not in layouts.number:
        raise PlanError(
            f"`{name}` cannot be pinned to {str(sharding)!r}: that does not divide shape "
            f"{layouts.array.shape} on {space.layouts.mesh.dp} x {space.layouts.mesh.op} devices; "
            f"pin it to one of {', '.join(map(str, layouts.shardings))}"
        )
    # A following array has its root's choices: all those that leave it in this layout remain.
    stored = space.stored[array]
    return stored.node, stored.layout == layouts.number[sharding]


def _offered(space: Space, array: int) -> str:
    stored, layouts = space.stored[array], space.layouts.of(space.graph.arrays[array])
    return ", ".join(str(layouts.shardings[number]) for number in sorted(set(stored.layout)))


def batch_on_dp(space: Space) -> Iterator[Mask]:
    """Yield what is kept if examples are split along dp, and nowhere else, in every product.

    Raises:
        PlanError: the examples do not divide.
    """
    graph, mesh = space.graph, space.layouts.mesh
    dims = batch_dims(graph)
    axes = (Axis.DP,) if mesh.dp > 1 else ()
    for path in roles_of(graph).batch:
        array = graph.arguments[path]
        shape = graph.arrays[array].shape
        if shape and shape[0] % mesh.dp:
            raise PlanError(
                f"`{path}` has {shape[0]} examples, which `dp` ({mesh.dp}) must divide to force a "
                "batch axis; choose another `dp`"
            )
        if shape:
            stored, shardings = space.stored[array], space.layouts.of(graph.arrays[array]).shardings
            yield (
                stored.node,
                np.array([shardings[number].dims[0] == axes for number in stored.layout]),
            )
    for index, node in space.deciding.items():
        operator = graph.operators[index]
        factor = batch_factor(operator.operands, operator.rule.operands, dims)
        if factor is not None:
            splits = space.table(operator).splits
            numbers = space.choice_numbers[node]
            yield node, np.array([splits[number].get(factor, ()) == axes for number in numbers])


def gradients_reduced(space: Space, by: GradientReduction) -> Iterator[Mask]:
    """Yield the choices in which gradients are reduced this way."""
    if by is GradientReduction.FREE:
        return
    for index, node in space.deciding.items():
        operator = space.graph.operators[index]
        if space.tree.final[operator.results[0]]:
            choices = space.table(operator).choices
            choices_left = [choices[number] for number in space.choice_numbers[node]]
            yield node, _ends_so(choices_left, scatter=by is GradientReduction.REDUCE_SCATTER)


def _ends_so(choices: list[OperatorChoice], *, scatter: bool) -> np.ndarray:
    """Keep what ends as asked; if nothing that reads the same does, keep what there is."""
    good = np.array(
        [all((p.scatter_dim is not None) == scatter for p in c.partial) for c in choices]
    )
    # Choices that read the same shards and sum over the same axes differ in their ending alone.
    group: dict[object, list[int]] = defaultdict(list)
    for index, choice in enumerate(choices):
        group[choice.operands, choice.partial_axes].append(index)
    for places in group.values():
        if not good[places].any():
            good[places] = True
    return good
