"""The ways to compute an operator: where it decides itself, and where it follows an operand.

A way gives each axis of the mesh one factor of the operator's rule, or none (then the devices along
it compute the same). That fixes the shardings of all operands and results, and along which axes
sums are partial.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from jaxpipe.autoshard.graph import Dims, Rule
from jaxpipe.autoshard.intra_op.partial_sums import endings
from jaxpipe.autoshard.strategy import (
    Axes,
    Axis,
    MeshShape,
    OperatorChoice,
    PartialSum,
    Sharding,
)

Split = Mapping[int, Axes]
"""The axes that split each factor; a factor that is not there is not split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A choice, and which axes split which factor in it."""

    split: Split
    choice: OperatorChoice


def all_ways(rule: Rule, shape: tuple[int, ...], mesh: MeshShape) -> Iterator[Way]:
    """Yield all ways to compute an operator of one result, of this shape.

    An axis that splits a factor with another one is inside it if it comes later in the mesh.

    >>> product = Rule(sizes=(4, 2, 8), operands=((0, 2), (2, 1)), results=((0, 1),))
    >>> for way in all_ways(product, (4, 2), MeshShape(dp=1, op=2)):
    ...     print(way.choice)
    RR,RR->RR
    S1R,RR->S1R
    RR,RS1->RS1
    RS1,S1R->RR +1
    RS1,S1R->S1R +1>0
    RS1,S1R->RS1 +1>1
    """
    axes = mesh.real_axes
    for factors in product((None, *range(len(rule.sizes))), repeat=len(axes)):
        split: dict[int, Axes] = {}
        for axis, factor in zip(axes, factors, strict=True):
            if factor is not None:
                split[factor] = (*split.get(factor, ()), axis)
        if any(rule.sizes[factor] % mesh.size(group) for factor, group in split.items()):
            continue
        operands = tuple(_sharded(dims, split) for dims in rule.operands)
        before = _sharded(rule.results[0], split)
        for partial, after in endings(before, _summed(rule, split), shape, mesh):
            choice = OperatorChoice(operands=operands, results=(after,), partial=partial)
            yield Way(split=split, choice=choice)


def following_way(rule: Rule, place: int, sharding: Sharding, mesh: MeshShape) -> Way:
    """Return the way to compute an operator that follows an operand with this sharding.

    Axes that the rule does not let through are gathered from the operand first, so that it may be
    read in fewer pieces than it is stored in; partial sums are all-reduced at once.

    >>> total = Rule(sizes=(4, 2), operands=((0, 1),), results=((0,),))
    >>> from jaxpipe.autoshard.strategy import parse_sharding
    >>> print(following_way(total, 0, parse_sharding("S0S1"), MeshShape(dp=2, op=2)).choice)
    S0S1->S0 +1
    """
    split: dict[int, Axes] = {}
    for factor, axes in zip(rule.operands[place], sharding.dims, strict=True):
        passed = 0 if factor is None else _passed(rule.sizes[factor], axes, mesh)
        if factor is not None and passed:
            split[factor] = axes[:passed]
    summed = _summed(rule, split)
    choice = OperatorChoice(
        operands=tuple(_sharded(dims, split) for dims in rule.operands),
        results=tuple(_sharded(dims, split) for dims in rule.results),
        partial=(PartialSum(axes=summed),) if summed else (),
    )
    return Way(split=split, choice=choice)


def _passed(size: int, axes: Axes, mesh: MeshShape) -> int:
    """Return how many of the axes, from the outermost, can split a factor of this size."""
    return max(n for n in range(len(axes) + 1) if size % mesh.size(axes[:n]) == 0)


def _sharded(dims: Dims, split: Split) -> Sharding:
    return Sharding(tuple(() if f is None else split.get(f, ()) for f in dims))


def _summed(rule: Rule, split: Split) -> tuple[Axis, ...]:
    return tuple(sorted(axis for factor in rule.summed for axis in split.get(factor, ())))
