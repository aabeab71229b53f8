"""How partial sums end: which ways there are, and the collectives of each."""

from collections.abc import Iterator
from itertools import product

from jaxpipe.autoshard.graph import ArrayType
from jaxpipe.autoshard.strategy import (
    Axes,
    Collective,
    CollectiveKind,
    MeshShape,
    PartialSum,
    Sharding,
)


def endings(
    before: Sharding, axes: Axes, shape: tuple[int, ...], mesh: MeshShape
) -> Iterator[tuple[tuple[PartialSum, ...], Sharding]]:
    """Yield the ways in which sums along these axes can end, and how the result is sharded then.

    Each axis is all-reduced, or scattered over a dim, as its innermost axis. Scatters come first,
    so that less is left to be all-reduced; axes that end alike end together.

    >>> from jaxpipe.autoshard.strategy import Axis, replicated
    >>> mesh = MeshShape(dp=1, op=2)
    >>> for partial, after in endings(replicated(1), (Axis.OP,), (4,), mesh):
    ...     print(partial[0].scatter_dim, after)
    None R
    0 S1
    """
    for places in product((None, *range(len(shape))), repeat=len(axes)):
        groups: dict[int | None, Axes] = {}
        for axis, place in zip(axes, places, strict=True):
            groups[place] = (*groups.get(place, ()), axis)
        partial = [PartialSum(axes=a, scatter_dim=p) for p, a in groups.items() if p is not None]
        after = before
        for each in partial:
            after = _scattered(after, each)
        if None in groups:
            partial.append(PartialSum(axes=groups[None]))
        if after.fits(shape, mesh):
            yield tuple(partial), after


def sum_collectives(
    after: Sharding, partial: tuple[PartialSum, ...], array: ArrayType, mesh: MeshShape
) -> Iterator[Collective]:
    """Yield the collectives that end partial sums, given how the result is sharded then."""
    before = after
    for each in reversed(partial):
        before = _gathered(before, each)
    for each in partial:
        scatter = each.scatter_dim is not None
        yield Collective(
            kind=CollectiveKind.REDUCE_SCATTER if scatter else CollectiveKind.ALL_REDUCE,
            num_bytes=before.local_bytes(array.shape, array.itemsize, mesh),
            axes=each.axes,
        )
        before = _scattered(before, each)


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
