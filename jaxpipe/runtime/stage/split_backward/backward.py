"""A backward in two halves: the gradient of the input at once, those of the weights later.

Another stage waits only for the gradient of the input (Qi et al., "Zero Bubble Pipeline
Parallelism", 2023, section 2). The backward is traced and its equations are divided, so that
neither half repeats work of the other. The second half reads what is carried: some of the
residuals, and the gradients of the outputs of the matrix products, which cross from the first half.
The gradients of biases and norms, cheap sums, are computed in the first half, so that no more is
carried than was kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax

from jaxpipe.jaxpr import FlatJaxpr, Values, flatten, read
from jaxpipe.runtime.stage.split_backward.halves import Halves, halve
from jaxpipe.runtime.stage.split_backward.scan import crossing_keys, run_first, run_second

Crossing: TypeAlias = tuple[Any, ...]
"""Arrays that the gradient of the input computes, and those of the weights read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitBackward:
    """A backward in two functions that can be jitted; `carry` leads from one to the other.

    Two are equal only if they are the same object: as part of a tree's structure, `jit` compares
    and hashes them at each call.
    """

    flat: FlatJaxpr
    halves: Halves
    num_residuals: int
    of_weights_structure: Any

    def input_part(self, residuals: Any, weights: Any, cotangent: Any) -> tuple[Any, Crossing]:
        """Return the gradient of the input, and what crosses."""
        values = self._values(dict(enumerate(jax.tree.leaves((residuals, weights, cotangent)))))
        run_first(self.flat, self.halves, values)
        of_input = read(values, self.flat.results[-1])
        return of_input, tuple(values[key] for key in crossing_keys(self.halves))

    def carry(self, residuals: Any, cotangent: Any, crossing: Crossing) -> "Carried":
        """Return what the weight part reads: nothing is copied, all other residuals may go."""
        carried = self.carry_form.carry(residuals, cotangent, crossing)
        return replace(carried, split=self)

    @property
    def carry_form(self) -> "CarryForm":
        """What `carry` needs to know."""
        positions = tuple(sorted(self.halves.second_inputs))
        return CarryForm(positions=positions, num_arguments=len(self.flat.arguments))

    def weight_part(self, carried: "Carried", weights: Any) -> Any:
        """Return the gradients of the weights."""
        # Arguments are residuals, weights, cotangent.
        known = enumerate(jax.tree.leaves(weights), start=self.num_residuals)
        values = self._values(carried.values | dict(known))
        values.update(zip(crossing_keys(self.halves), carried.crossing, strict=True))
        run_second(self.flat, self.halves, values)
        cotangents = [read(values, atom) for atom in self.flat.results[:-1]]
        return jax.tree.unflatten(self.of_weights_structure, cotangents)

    def _values(self, inputs: dict[int, Any]) -> Values:
        return {self.flat.arguments[position]: array for position, array in inputs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryForm:
    """What of the arguments of a backward its second half reads, by their positions.

    Arguments are the leaves of residuals, weights and cotangent. All that is needed to `carry`
    between halves that are compiled.
    """

    positions: tuple[int, ...]
    num_arguments: int

    def carry(self, residuals: Any, cotangent: Any, crossing: Crossing) -> "Carried":
        """Return what the weight part reads: nothing is copied, all other residuals may go."""
        inputs = dict(enumerate(jax.tree.leaves(residuals)))
        of_output = jax.tree.leaves(cotangent)  # the last arguments
        inputs |= enumerate(of_output, start=self.num_arguments - len(of_output))
        # The weights are among the inputs too: `weight_part` receives them again, instead of here.
        values = {position: inputs[position] for position in self.positions if position in inputs}
        return Carried(values=values, crossing=crossing, split=None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What lives between the halves: `values` of inputs, by their position, and what crosses.

    `split` is None where nothing is traced: between halves that are compiled, and in a paced run.
    """

    values: dict[int, Any]
    crossing: Crossing
    split: SplitBackward | None = field(metadata={"static": True})


def split_backward(
    backward: Callable, residuals: Any, weights: Any, cotangent: Any
) -> SplitBackward:
    """Split `backward(residuals, weights, cotangent) -> (of_weights, of_input)`.

    The arguments are trees of arrays, or of their shapes; `of_input` is one array.

    >>> import jax.numpy as jnp
    >>> def backward(residuals, weights, cotangent):
    ...     return residuals["x"].T @ cotangent, cotangent @ weights.T
    >>> arguments = {"x": jnp.ones((2, 3)), "seen": jnp.ones(9)}, jnp.ones((3, 4)), jnp.ones((2, 4))
    >>> split = split_backward(backward, *arguments)
    >>> of_input, crossing = split.input_part(*arguments)
    >>> carried = split.carry(arguments[0], arguments[2], crossing)
    >>> jax.tree.map(jnp.shape, (carried.values, carried.crossing))
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
        flat=flat,
        halves=halves,
        num_residuals=len(jax.tree.leaves(residuals)),
        of_weights_structure=jax.tree.structure(of_weights),
    )
