"""Split a backward in two: the gradient of the input at once, those of the weights later.

Only the gradient of the input is awaited by another stage (Qi et al., "Zero Bubble Pipeline
Parallelism", 2023, section 2). The backward is traced and its equations are partitioned, so that
neither part repeats the work of the other. The second part reads some of the residuals, and the
gradients of the outputs of the matrix products, which the first part computes. The gradients of
biases and norms are cheap sums; the first part computes them, so that little more is kept between
the parts than the residuals were.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from jaxpipe.jaxpr import FlatJaxpr, Values, flatten, read
from jaxpipe.runtime.stage.split_backward.partition import Halves, halve
from jaxpipe.runtime.stage.split_backward.scan import crossing_keys, run_first, run_second

Crossing: TypeAlias = tuple[Any, ...]
"""Arrays that the input part computes and the weight part reads."""

Carried: TypeAlias = tuple[dict[int, Any], Crossing]
"""What is kept between the parts: inputs of the backward by position, and what crosses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBackward:
    """A backward in two functions that can be jitted; `carry` leads from one to the other."""

    flat: FlatJaxpr
    halves: Halves
    of_weights_structure: Any

    def input_part(self, residuals: Any, weights: Any, cotangent: Any) -> tuple[Any, Crossing]:
        """Return the gradient of the input, and what crosses."""
        values = self._values(dict(enumerate(jax.tree.leaves((residuals, weights, cotangent)))))
        run_first(self.flat, self.halves, values)
        of_input = read(values, self.flat.results[-1])
        return of_input, tuple(values[key] for key in crossing_keys(self.halves))

    def carry(self, residuals: Any, cotangent: Any, crossing: Crossing) -> Carried:
        """Return what the weight part needs; nothing is copied, and all else may be freed."""
        leaves = jax.tree.leaves(residuals)
        inputs = dict(enumerate(leaves))
        inputs[len(self.flat.arguments) - 1] = cotangent
        return {p: inputs[p] for p in sorted(self.halves.second_inputs & inputs.keys())}, crossing

    def weight_part(self, carried: Carried, weights: Any) -> Any:
        """Return the gradients of the weights."""
        kept, crossing = carried
        known = jax.tree.leaves(weights)
        first = len(self.flat.arguments) - 1 - len(known)
        values = self._values(kept | {first + n: leaf for n, leaf in enumerate(known)})
        values.update(zip(crossing_keys(self.halves), crossing, strict=True))
        run_second(self.flat, self.halves, values)
        found = [read(values, atom) for atom in self.flat.results[:-1]]
        return jax.tree.unflatten(self.of_weights_structure, found)

    def _values(self, inputs: dict[int, Any]) -> Values:
        return {self.flat.arguments[position]: array for position, array in inputs.items()}


def split_backward(
    backward: Callable, residuals: Any, weights: Any, cotangent: Any
) -> SplitBackward:
    """Split `backward(residuals, weights, cotangent) -> (of_weights, of_input)`.

    The arguments are arrays, or their shapes; `cotangent` and `of_input` are one array each.

    >>> import jax.numpy as jnp
    >>> def backward(residuals, weights, cotangent):
    ...     return residuals["x"].T @ cotangent, cotangent @ weights.T
    >>> arguments = {"x": jnp.ones((2, 3)), "seen": jnp.ones(9)}, jnp.ones((3, 4)), jnp.ones((2, 4))
    >>> split = split_backward(backward, *arguments)
    >>> of_input, crossing = split.input_part(*arguments)
    >>> carried = split.carry(arguments[0], arguments[2], crossing)
    >>> jax.tree.map(jnp.shape, carried)
    ({1: (2, 3), 3: (2, 4)}, ())
    >>> jnp.allclose(split.weight_part(carried, arguments[1]), backward(*arguments)[0])
    Array(True, dtype=bool)
    """
    traced, (of_weights, _) = jax.make_jaxpr(backward, return_shape=True)(
        residuals, weights, cotangent
    )
    flat = flatten(traced, unroll=False)
    last = len(flat.results) - 1
    halves = halve(flat, first=frozenset([last]), second=frozenset(range(last)))
    return SplitBackward(
        flat=flat, halves=halves, of_weights_structure=jax.tree.structure(of_weights)
    )
