"""Enumerate the shardings of an operator: of its own choice, or following an operand.

A candidate assigns each mesh axis one factor of the operator's rule, or none (the devices along it
then compute the same). That fixes the shardings of all operands and results, and the axes along
which the results are partial sums.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from jaxpipe.baselines.autoshard.graph import ArrayType, Dims, Rule
from jaxpipe.baselines.autoshard.strategy import (
    Axes,
    Axis,
    Collective,
    CollectiveKind,
    MeshShape,
    OperatorChoice,
    PartialSum,
    Sharding,
)

Split = Mapping[int, Axes]
"""The axes that split each factor; factors that are missing are not split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingCandidate:
    """A candidate sharding of an operator, and the axes that split each factor in it."""

    split: Split
    choice: OperatorChoice


def candidates(rule: Rule, shape: tuple[int, ...], mesh: MeshShape) -> Iterator[ShardingCandidate]:
    """Yield all shardings of an operator with one result of this shape.

    Of two axes that split the same factor, the later one of the mesh is the inner one.

    >>> product = Rule(sizes=(4, 2, 8), operands=((0, 2), (2, 1)), results=((0, 1),))
    >>> for each in candidates(product, (4, 2), MeshShape(dp=1, op=2)):
    ...     print(each.choice)
    RR,RR->RR
    S1R,RR->S1R
    RR,RS1->RS1
    RS1,S1R->RR +1
    RS1,S1R->S1R +1>0
    RS1,S1R->RS1 +1>1
    """
    axes = mesh.real_axes
    # (factors + 1) ** axes candidates: small only because a mesh has two axes.
    for factors in product((None, *range(len(rule.sizes))), repeat=len(axes)):
        split: dict[int, Axes] = {}
        for axis, factor in zip(axes, factors, strict=True):
            if factor is not None:
                split[factor] = (*split.get(factor, ()), axis)
        # `shard_map` runs one program: shards must be equal.
        if any(rule.sizes[factor] % mesh.size(group) for factor, group in split.items()):
            continue
        operands = tuple(_sharded(dims, split) for dims in rule.operands)
        before = _sharded(rule.results[0], split)
        for partial, after in endings(before, _summed(rule, split), shape, mesh):
            choice = OperatorChoice(operands=operands, results=(after,), partial=partial)
            yield ShardingCandidate(split=split, choice=choice)


def following_candidate(
    rule: Rule, operand: int, sharding: Sharding, mesh: MeshShape
) -> ShardingCandidate:
    """Return the sharding of an operator that follows an operand with this sharding.

    Axes that the rule does not pass on are all-gathered from the operand first, so that the operand
    may be read in fewer pieces than it is stored in; partial sums are all-reduced immediately.

    >>> total = Rule(sizes=(4, 2), operands=((0, 1),), results=((0,),))
    >>> from jaxpipe.baselines.autoshard.strategy import parse_sharding
    >>> print(following_candidate(total, 0, parse_sharding("S0S1"), MeshShape(dp=2, op=2)).choice)
    S0S1->S0 +1
    """
    split: dict[int, Axes] = {}
    for factor, axes in zip(rule.operands[operand], sharding.dims, strict=True):
        passed = 0 if factor is None else _passed(rule.sizes[factor], axes, mesh)
        if factor is not None and passed:
            split[factor] = axes[:passed]
    summed = _summed(rule, split)
    choice = OperatorChoice(
        operands=tuple(_sharded(dims, split) for dims in rule.operands),
        results=tuple(_sharded(dims, split) for dims in rule.results),
        partial=(PartialSum(axes=summed),) if summed else (),
    )
    return ShardingCandidate(split=split, choice=choice)


def endings(
    before: Sharding, axes: Axes, shape: tuple[int, ...], mesh: MeshShape
) -> Iterator[tuple[tuple[PartialSum, ...], Sharding]]:
    """Yield the ways in which sums along these axes can end, and how the result is sharded then.

    Each axis is all-reduced, or scattered over a dim, as its innermost axis. Scatters come first,
    so that less is left to be all-reduced; axes that end alike end together.

    >>> from jaxpipe.baselines.autoshard.strategy import Axis, replicated
    >>> mesh = MeshShape(dp=1, op=2)
    >>> for partial, after in endings(replicated(1), (Axis.OP,), (4,), mesh):
    ...     print(partial[0].scatter_dim, after)
    None R
    0 S1
    """
    for places in product((None, *range(len(shape))), repeat=len(axes)):
        groups: dict[int | None, Axes] = {}
        for axis, dim in zip(axes, places, strict=True):
            groups[dim] = (*groups.get(dim, ()), axis)
        partial = [PartialSum(axes=a, scatter_dim=p) for p, a in groups.items() if p is not None]
        after = before
        for partial_sum in partial:
            after = _scattered(after, partial_sum)
        if None in groups:
            partial.append(PartialSum(axes=groups[None]))
        if after.fits(shape, mesh):
            yield tuple(partial), after


def reduction_collectives(
    after: Sharding, partial: tuple[PartialSum, ...], array: ArrayType, mesh: MeshShape
) -> Iterator[Collective]:
    """Yield the collectives that end partial sums, given how the result is sharded then."""
    before = after
    for partial_sum in reversed(partial):
        before = _gathered(before, partial_sum)
    # Each counts its input: after a scatter, less is left to the next.
    for partial_sum in partial:
        scatter = partial_sum.scatter_dim is not None
        yield Collective(
            kind=CollectiveKind.REDUCE_SCATTER if scatter else CollectiveKind.ALL_REDUCE,
            num_bytes=before.local_bytes(array.shape, array.itemsize, mesh),
            axes=partial_sum.axes,
        )
        before = _scattered(before, partial_sum)


def _passed(size: int, axes: Axes, mesh: MeshShape) -> int:
    """Return how many of the axes, from the outermost, can split a factor of this size."""
    # Prefixes alone: an inner axis without the outer one puts other rows on each device.
    return max(n for n in range(len(axes) + 1) if size % mesh.size(axes[:n]) == 0)


def _sharded(dims: Dims, split: Split) -> Sharding:
    return Sharding(tuple(() if f is None else split.get(f, ()) for f in dims))


def _summed(rule: Rule, split: Split) -> tuple[Axis, ...]:
    return tuple(sorted(axis for factor in rule.summed for axis in split.get(factor, ())))


def _scattered(sharding: Sharding, partial: PartialSum) -> Sharding:
    if partial.scatter_dim is None:
        return sharding
    dims = list(sharding.dims)
    dims[partial.scatter_dim] = (*dims[partial.scatter_dim], *partial.axes)
    return Sharding(tuple(dims))


def _gathered(sharding: Sharding, partial: PartialSum) -> Sharding:
    if partial.scatter_dim is None:
        return sharding
    dims = list(sharding.dims)
    dims[partial.scatter_dim] = dims[partial.scatter_dim][: -len(partial.axes)]
    return Sharding(tuple(dims))
