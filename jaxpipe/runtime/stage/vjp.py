"""A function cut into two jitted halves: the forward returns what the backward needs.

`jax.vjp` returns a pytree whose leaves are the residuals, so it may leave a jitted function. Among
those leaves are the weights themselves, and some arrays more than once, and a jitted function
copies what it returns: each microbatch in flight would hold a copy of the stage. Leaves are
therefore told apart by identity while tracing; weights are left out and put back by the backward.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """What a forward keeps for its backward.

    Leaf `i` of the vjp, whose tree is `structure`, is number `index[i]` of the weights followed by
    the `saved` arrays.
    """

    saved: tuple[Any, ...]
    index: tuple[int, ...] = field(metadata={"static": True})
    structure: Any = field(metadata={"static": True})


def forward_with_residuals(function: Callable, weights: Any, *inputs: Any) -> tuple[Any, Residuals]:
    """Return `function(weights, *inputs)`, and the residuals of its vjp in all its arguments."""
    output, vjp = jax.vjp(function, weights, *inputs)
    leaves, structure = jax.tree.flatten(vjp)
    known = jax.tree.leaves(weights)
    num_weights = len(known)
    index_of = {id(weight): i for i, weight in enumerate(known)}
    for leaf in leaves:
        if id(leaf) not in index_of:
            index_of[id(leaf)] = len(known)
            known.append(leaf)
    index = tuple(index_of[id(leaf)] for leaf in leaves)
    saved = tuple(known[num_weights:])
    return output, Residuals(saved=saved, index=index, structure=structure)


def backward_from_residuals(residuals: Residuals, weights: Any, cotangent: Any) -> tuple[Any, ...]:
    """Return the gradients of the weights and of the inputs, given that of the output.

    `weights` must be those of the forward.
    """
    known = (*jax.tree.leaves(weights), *residuals.saved)
    vjp = jax.tree.unflatten(residuals.structure, [known[i] for i in residuals.index])
    return vjp(cotangent)
