"""`MatrixProduct`: a dot_general as a product of two matrices, each transposed or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

DotDims = tuple[
    tuple[Sequence[int], Sequence[int]],
    tuple[Sequence[int], Sequence[int]],
]
"""`dimension_numbers` of `jax.lax.dot_general`: the dims that are summed, and those of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """The product of op(left) (m, k) and op(right) (k, n); `op` transposes where it says so.

    The factors are row-major and reshaped, which copies nothing; so is the result, (m, n).
    """

    m: int
    k: int
    n: int
    left_is_transposed: bool
    right_is_transposed: bool

    @property
    def left_shape(self) -> tuple[int, int]:
        """The shape of the left matrix in memory."""
        return (self.k, self.m) if self.left_is_transposed else (self.m, self.k)

    @property
    def right_shape(self) -> tuple[int, int]:
        """The shape of the right matrix in memory."""
        return (self.n, self.k) if self.right_is_transposed else (self.k, self.n)

    @property
    def num_multiplications(self) -> int:
        """The multiplications of the product."""
        return self.m * self.k * self.n


def matrix_product(
    left: Sequence[int], right: Sequence[int], dims: DotDims
) -> MatrixProduct | None:
    """Return the dot_general of two shapes as one product of matrices; None if it is none.

    It is one if each factor has its summed dims together, first or last, and both have them in the
    same order. One with dims of a batch is none.

    >>> matrix_product((4, 16, 8), (8, 32), (((2,), (0,)), ((), ())))
    MatrixProduct(m=64, k=8, n=32, left_is_transposed=False, right_is_transposed=False)
    >>> matrix_product((4, 16, 8), (4, 8, 32), (((2,), (1,)), ((0,), (0,))))
    """
    (summed, other_summed), (batch, _) = dims
    if batch:
        return None
    pairs = sorted(zip(summed, other_summed, strict=True))
    is_first = _is_first(left, [dim for dim, _ in pairs])
    other_is_first = _is_first(right, [dim for _, dim in pairs])
    if is_first is None or other_is_first is None:
        return None
    return MatrixProduct(
        m=prod(size for dim, size in enumerate(left) if dim not in summed),
        k=prod(left[dim] for dim in summed),
        n=prod(size for dim, size in enumerate(right) if dim not in other_summed),
        left_is_transposed=is_first,
        right_is_transposed=not other_is_first,
    )


def _is_first(shape: Sequence[int], summed: Sequence[int]) -> bool | None:
    """Return whether the summed dims are before the others, False if behind; None if neither."""
    dims = [dim for dim in range(len(shape)) if shape[dim] != 1]  # where those of 1 are is equal
    others = [dim for dim in dims if dim not in summed]
    summed = [dim for dim in summed if dim in dims]
    if others + summed == dims:
        return False
    return True if summed + others == dims else None
