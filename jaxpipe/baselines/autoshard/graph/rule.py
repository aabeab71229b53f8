"""Sharding rules: the dims of an operator's operands and results that are split together.

Each dim belongs to a factor, or is whole (None). A factor that no result has is reduced:
devices that split it hold partial sums. The shardings of an operator are then the assignments of
one factor, or none, to each axis of the mesh. A product of matrices, with factors m, n and k::

    (m, k) x (k, n) -> (m, n)       k is summed

Source: the rules of einsum; Zheng et al., "Alpa", OSDI 2022, table 3, is the case of a product.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Dims = tuple[int | None, ...]
"""The factor of each dim of an array; None where devices must have the dim whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The factors of an operator's dims, and their sizes; a factor splits into a divisor.

    >>> product = Rule(sizes=(4, 2, 8), operands=((0, 2), (2, 1)), results=((0, 1),))
    >>> product.summed
    (2,)
    """

    sizes: tuple[int, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]

    @property
    def summed(self) -> tuple[int, ...]:
        """The factors that no result has."""
        remaining = {factor for dims in self.results for factor in dims}
        return tuple(factor for factor in range(len(self.sizes)) if factor not in remaining)


def named_rule(
    operands: tuple[tuple[object, ...], ...],
    results: tuple[tuple[object, ...], ...],
    *,
    sizes: Mapping[Any, int],
) -> Rule:
    """Return the rule whose factors have these names; those without a size are whole.

    >>> named_rule((("m", "k"), ("k", "n")), (("m", "n"),), sizes={"m": 4, "n": 2, "k": 8})
    Rule(sizes=(4, 2, 8), operands=((0, 2), (2, 1)), results=((0, 1),))
    """
    number = {name: index for index, name in enumerate(sizes)}

    def numbered(arrays: tuple[tuple[object, ...], ...]) -> tuple[Dims, ...]:
        return tuple(tuple(number.get(name) for name in dims) for dims in arrays)

    return Rule(sizes=tuple(sizes.values()), operands=numbered(operands), results=numbered(results))


def whole_rule(operands: tuple[int, ...], results: tuple[int, ...]) -> Rule:
    """Return the rule of an unknown operator, with arrays of these ranks: no dim is split."""
    return Rule(
        sizes=(),
        operands=tuple((None,) * rank for rank in operands),
        results=tuple((None,) * rank for rank in results),
    )


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationForm:
    """What a rule depends on besides the primitive: shapes of operands and results, parameters."""

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    params: Mapping[str, Any]
