"""`jax.vjp` in two jitted functions: the forward returns the residuals, the backward reads them.

`jax.vjp` returns a pytree whose leaves are the residuals, so a jitted function can return it. Among
those leaves are the weights themselves, and some arrays more than once, and a jitted function
copies its results: each microbatch in flight would have a copy of the stage. Leaves are therefore
compared by identity while tracing; the forward omits the weights, and the backward adds them again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """The arrays that a forward keeps for its backward.

    Leaf `i` of the vjp, whose tree is `structure`, is number `index[i]` of the weights followed by
    the `saved` arrays.
    """

    saved: tuple[Any, ...]
    index: tuple[int, ...] = field(metadata={"static": True})
    structure: Any = field(metadata={"static": True})


def forward_with_residuals(
    function: Callable, weights: Any, *inputs: Any, beside: Any = None
) -> tuple[Any, Residuals]:
    """Return `function(weights, *inputs)`, and the residuals of its vjp in all arguments.

    Residuals among the leaves of `beside` are omitted as well: `weights` by default, or a tree with
    all arrays that the backward is given, constants of `function` included.
    """
    output, vjp = jax.vjp(function, weights, *inputs)
    leaves, structure = jax.tree.flatten(vjp)
    known = jax.tree.leaves(weights if beside is None else beside)
    num_weights = len(known)
    # Tracers have no values to compare: identity shows which leaves are weights, or repeated.
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

    `weights` must be those of the forward, or its `beside`.
    """
    known = (*jax.tree.leaves(weights), *residuals.saved)
    vjp = jax.tree.unflatten(residuals.structure, [known[i] for i in residuals.index])
    return vjp(cotangent)
