"""Products over rows, those of weight gradients, in an order and a form that are fast.

The gradient of a kernel sums over tokens: x^T g, of the input x (tokens, inputs) and the gradient
g (tokens, outputs) of the output. Two things make such products slower than those of a forward::

    x^T g B^T    the gradient of an adapter, (inputs, rank), is traced as (x^T g) B^T, by way of
                 all (inputs, outputs); x^T (g B^T) needs about rank / outputs of its operations
    x^T g        XLA's kernels for the CPU read the first factor row by row: on cores with AVX2
                 they reach half to two thirds of the speed of a forward (measured), and about
                 nine tenths with a transposed copy of the smaller factor
    float32(x^T g)   of factors in bfloat16: the product is rounded to bfloat16, written, read and
                     added to gradients in float32; a product with a result in float32 is not
                     rounded, and XLA's for GPUs add it to the gradients themselves. Those for the
                     CPU refuse some of them ("Unsupported element type for DotThunk")

Sums of 16 bits, as those of biases over their rows, are traced in float32, in which XLA's for the
CPU take a tenth of the time.

A function is traced once more and evaluated equation by equation. A product over rows stays a pair
of factors (`_RowProduct`) until another equation reads it, and the reader decides how it is
computed. Results change by roundings alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier as barrier
from jaxtyping import Array

from jaxpipe.jaxpr import Equation, FlatJaxpr, Scan, Variable, compute, flatten, run_scan

_HALVES: Final = (jnp.bfloat16, jnp.float16)

LEAST_COPIED: Final = 2**24
"""The multiplications of a product that is worth a copy of a factor; below, calls cost as much."""


def fast_row_products(function: Callable, *, copied: bool) -> Callable:
    """Return a function with the same results, whose products over rows are fast.

    With `copied`, large ones read a transposed copy of a factor, as XLA's kernels for the CPU want
    it; a BLAS does not. Without it, products that are read in float32 have their result in it.

    >>> def of_a(x, g, b):
    ...     return jnp.tensordot(x, g, ((0,), (0,))) @ b.T
    >>> traced = jax.make_jaxpr(fast_row_products(of_a, copied=False))
    >>> equations = traced(jnp.ones((4, 3)), jnp.ones((4, 5)), jnp.ones((1, 5))).eqns
    >>> [e.outvars[0].aval.shape for e in equations if e.primitive.name == "dot_general"]
    [(4, 1), (3, 1)]
    """

    @wraps(function)
    def evaluated(*arguments: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        flat = flatten(traced, unroll=False, barriers=True)
        results = _evaluate(flat, jax.tree.leaves(arguments), copied=copied)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return evaluated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RowProduct:
    """The product of `left` (rows, *m) and `right` (rows, *n) over their rows.

    Args:
        left: the first factor.
        right: the second one.
        order: the dims of the result, as numbers of those of (*m, *n).
        dot: `jax.lax.dot_general` with the precision, format and scope of the equation; another
            format is its `dtype`.
    """

    left: Array
    right: Array
    order: tuple[int, ...]
    dot: Callable[..., Array]

    @property
    def num_multiplications(self) -> int:
        """The multiplications of the product."""
        return self.left.size * (self.right.size // len(self.right))

    def read_by(self, equation: Equation, *, widens: bool) -> "_RowProduct | None":
        """Return the result of an equation that reads this alone, None if it is no product."""
        is_half = widens and self.left.dtype == self.right.dtype and self.left.dtype in _HALVES
        match equation.primitive, equation.params:
            case "transpose", {"permutation": dims}:
                return replace(self, order=tuple(self.order[dim] for dim in dims))
            case "convert_element_type", {"new_dtype": jnp.float32 as dtype} if is_half:
                return replace(self, dot=partial(self.dot, dtype=dtype))
            case _:
                return None

    def times(
        self, other: Array, dims: Sequence[int], other_dims: Sequence[int], *, is_first: bool
    ) -> "_RowProduct | None":
        """Return the product of this and another array over some dims, by way of one factor.

        With `is_first`, the result has the other dims of this product before those of `other`. None
        unless all dims of one factor are summed, and that way takes fewer multiplications than this
        product alone.
        """
        summed = sorted(zip((self.order[dim] for dim in dims), other_dims, strict=True))
        num_left = self.left.ndim - 1
        if [dim for dim, _ in summed] == list(range(num_left)):
            return self.swapped().times(other, dims, other_dims, is_first=is_first)
        if [dim for dim, _ in summed] != list(range(num_left, len(self.order))):
            return None
        if other.dtype != self.right.dtype:
            return None
        thin = other.size // prod(self.right.shape[1:])
        if thin * (self.left.size + self.right.size) >= self.num_multiplications:
            return None
        factor_dims = tuple(range(1, self.right.ndim))
        inner = self.dot(self.right, other, ((factor_dims, [d for _, d in summed]), ((), ())))
        of_left = tuple(dim for dim in self.order if dim < num_left)
        of_inner = tuple(range(num_left, num_left + inner.ndim - 1))
        order = of_left + of_inner if is_first else of_inner + of_left
        return replace(self, right=inner, order=order)

    def swapped(self) -> "_RowProduct":
        """Return the same result, as that of the factors in the other order."""
        num_left, num_right = self.left.ndim - 1, self.right.ndim - 1
        order = tuple(dim + num_right if dim < num_left else dim - num_left for dim in self.order)
        return replace(self, left=self.right, right=self.left, order=order)

    def array(self, *, copied: bool) -> Array:
        """Return the result, by way of the smaller copy if it is large enough and `copied`."""
        if not copied or self.num_multiplications < LEAST_COPIED:
            # Of a kernel (inputs, outputs), the gradient is traced as that of (outputs, inputs).
            least = min(self, self.swapped(), key=lambda product: product.is_reordered)
            product = least.dot(least.left, least.right, (((0,), (0,)), ((), ())))
            return jnp.transpose(product, least.order)
        smaller = min(self, self.swapped(), key=lambda product: product.num_written)
        # Barriers on both sides: as a part of a larger loop, a copy is several times as slow.
        copy = barrier(jnp.moveaxis(barrier(smaller.left), 0, -1))
        product = smaller.dot(copy, smaller.right, (((copy.ndim - 1,), (0,)), ((), ())))
        if not smaller.is_reordered:
            return product
        return barrier(jnp.transpose(barrier(product), smaller.order))

    @property
    def num_written(self) -> int:
        """The elements that are written beside the product, if `left` is copied."""
        size = self.left.size * self.right.size // len(self.left) ** 2
        return self.left.size + (size if self.is_reordered else 0)

    @property
    def is_reordered(self) -> bool:
        """Whether the dims of the result are not those of (*m, *n)."""
        return self.order != tuple(range(len(self.order)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """The values of a function's variables: arrays, or products that nothing has read yet."""

    values: dict[Any, Any]
    copied: bool

    def run(self, equation: Equation) -> None:
        """Add the results of an equation."""
        product = self._product(equation)
        results = self._results(equation) if product is None else (product,)
        self.values.update(zip(equation.results, results, strict=True))

    def read(self, variable: Variable) -> Any:
        """Return the array of a variable."""
        value = self._value(variable)
        if isinstance(value, _RowProduct):
            value = self.values[variable] = value.array(copied=self.copied)
        return value

    def _value(self, variable: Variable) -> Any:
        return variable.value if variable.is_constant else self.values[variable]

    def _product(self, equation: Equation) -> _RowProduct | None:
        """Return the result if it is a product over rows, None otherwise."""
        operands = tuple(map(self._value, equation.operands))
        if len(operands) == 1 and isinstance(operands[0], _RowProduct):
            return operands[0].read_by(equation, widens=not self.copied)
        if equation.primitive != "dot_general" or any(equation.params["dimension_numbers"][1]):
            return None
        dims, other_dims = equation.params["dimension_numbers"][0]
        match operands:
            case _RowProduct() as product, jax.Array() as other:
                return product.times(other, dims, other_dims, is_first=True)
            case jax.Array() as other, _RowProduct() as product:
                return product.times(other, other_dims, dims, is_first=False)
            case jax.Array() as left, jax.Array() as right if dims == other_dims == (0,):
                order = tuple(range(left.ndim + right.ndim - 2))
                return _RowProduct(left=left, right=right, order=order, dot=_dot_like(equation))
            case _:
                return None

    def _results(self, equation: Equation) -> Sequence[Any]:
        operands = [self.read(variable) for variable in equation.operands]
        if equation.source is None:
            return barrier(tuple(operands))
        if equation.scan is not None:
            return self._scanned(equation.scan, operands)
        if equation.primitive == "reduce_sum" and operands[0].dtype in _HALVES:
            return (_sum_in_float32(equation, operands[0]),)
        return compute(equation, operands)

    def _scanned(self, scan: Scan, operands: Sequence[Any]) -> Sequence[Any]:
        first = scan.num_consts + scan.num_carry
        consts, carry, xs = (
            operands[: scan.num_consts],
            operands[scan.num_consts : first],
            operands[first:],
        )

        def step(carry: Any, xs: Any) -> tuple[Any, Any]:
            results = _evaluate(scan.body, [*consts, *carry, *xs], copied=self.copied)
            return results[: scan.num_carry], results[scan.num_carry :]

        carry, ys = run_scan(scan, step, carry, xs)
        return [*carry, *ys]


def _evaluate(flat: FlatJaxpr, arguments: Sequence[Any], *, copied: bool) -> list[Any]:
    values = dict(zip(flat.arguments, arguments, strict=True))
    evaluation = _Evaluation(values=values, copied=copied)
    for equation in flat.equations:
        evaluation.run(equation)
    return [evaluation.read(variable) for variable in flat.results]


def _sum_in_float32(equation: Equation, terms: Array) -> Array:
    """Return a sum of numbers of 16 bits, as of a bias over its rows, rounded once."""
    with jax.named_scope(equation.scope):
        return jnp.sum(terms, equation.params["axes"], jnp.float32).astype(terms.dtype)


def _dot_like(equation: Equation) -> Callable[..., Array]:
    """Return `jax.lax.dot_general` with the precision, format and scope of an equation."""
    precision, given = (equation.params[k] for k in ("precision", "preferred_element_type"))

    def dot(left: Array, right: Array, dimension_numbers: Any, *, dtype: Any = given) -> Array:
        with jax.named_scope(equation.scope):
            return jax.lax.dot_general(
                left, right, dimension_numbers, precision, preferred_element_type=dtype
            )

    return dot
