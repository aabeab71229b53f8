"""Reshard: the local slices and the collectives from one sharding to another.

::

    S0R -> S01R     slice: free
    S01R -> S0R     gather along the innermost axes
    S0R -> RS0      all-to-all
    S0S1 -> S1S0    gather, then slice
"""

from dataclasses import dataclass

from jaxpipe.autoshard.strategy import Axes, Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The next collective of a resharding.

    `to_dim` is where an all-to-all splits; None for a gather.
    """

    axes: Axes
    dim: int
    to_dim: int | None
    after: Sharding


def cuts(stored: Sharding, needed: Sharding) -> list[tuple[int, Axes]] | None:
    """Return the dims to slice along axes, or None if a collective is needed.

    >>> from jaxpipe.autoshard.strategy import parse_sharding
    >>> cuts(parse_sharding("S0R"), parse_sharding("S01R"))
    [(0, (<Axis.OP: 1>,))]
    """
    found: list[tuple[int, Axes]] = []
    for dim, (have, need) in enumerate(zip(stored.dims, needed.dims, strict=True)):
        if need[: len(have)] != have:  # an outer axis that differs: no slice removes it
            return None
        if len(need) > len(have):
            found.append((dim, need[len(have) :]))
    return found


def next_move(stored: Sharding, needed: Sharding) -> Move:
    """Return the next collective; slicing alone must not be enough.

    >>> from jaxpipe.autoshard.strategy import parse_sharding
    >>> str(next_move(parse_sharding("S0S1"), parse_sharding("S0R")).after)
    'S0R'
    """
    for dim, (have, need) in enumerate(zip(stored.dims, needed.dims, strict=True)):
        common = _common(have, need)
        # From the first wrong axis on: an outer one cannot leave from under the inner ones.
        gone = have[common:]
        if not gone:
            continue
        to_dim = _moved_to(stored, needed, dim, gone)
        dims = list(stored.dims)
        dims[dim] = have[:common]
        if to_dim is not None:
            dims[to_dim] = (*dims[to_dim], *gone)
        return Move(axes=gone, dim=dim, to_dim=to_dim, after=Sharding(tuple(dims)))
    raise AssertionError(f"{stored} is sliced to {needed}, without a collective")


def _common(have: Axes, need: Axes) -> int:
    common = 0
    while common < min(len(have), len(need)) and have[common] == need[common]:
        common += 1
    return common


def _moved_to(stored: Sharding, needed: Sharding, dim: int, gone: Axes) -> int | None:
    """Return the dim which the axes split afterwards, if an all-to-all takes them there."""
    for to_dim, (have, need) in enumerate(zip(stored.dims, needed.dims, strict=True)):
        # Innermost there, in the same order: an all-to-all cannot do more.
        if to_dim != dim and need == (*have, *gone):
            return to_dim
    return None
