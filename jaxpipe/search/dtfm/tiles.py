"""Constructive starts: fill the table of replicas x stages with islands, tile by tile.

The devices of an island go into one tile, `height` replicas by `width` stages of it. Wide tiles
keep pipelines inside islands, high tiles keep the gradient sync inside islands::

    height 1, width 4        height 4, width 1        height 2, width 2
      a a a a                  a b c d                  a a b b
      b b b b   replicas       a b c d                  a a b b
      c c c c                  a b c d                  c c d d
      d d d d                  a b c d                  c c d d
       stages
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from jaxpipe.search.dtfm.nested_islands import packed_order, shuffled
from jaxpipe.search.dtfm.network import Network


def tiled(
    order: np.ndarray, *, num_groups: int, group_size: int, height: int, width: int, down: bool
) -> np.ndarray:
    """Return groups x members, filled with the devices in `order`, tile by tile.

    With `down` the next tile is below the last one, otherwise to its right; inside a tile one
    replica follows the other.

    >>> tiled(np.arange(8), num_groups=4, group_size=2, height=1, width=2, down=True).T
    array([[0, 1, 4, 5],
           [2, 3, 6, 7]])
    """
    replica, stage = (axis.ravel() for axis in np.indices((group_size, num_groups)))
    row, column = replica // height, stage // width
    # The last key sorts first: tiles in order, then the cells inside of each.
    cells = np.lexsort((stage, replica, row, column) if down else (stage, replica, column, row))
    table = np.empty(len(cells), dtype=int)
    table[cells] = order[: len(cells)]
    return table.reshape(group_size, num_groups).T


def tilings(network: Network, *, num_groups: int, group_size: int) -> Iterator[np.ndarray]:
    """Yield the groupings, groups x members, of tiles of all sizes, each grouping once.

    Sizes are halved from the whole to one; islands are those of hops, then those of syncs.
    """
    seen = set()
    sizes = product(_halves(group_size), _halves(num_groups))
    for islands, (height, width) in product(network.islands, tuple(sizes)):
        order = packed_order(islands, size=height * width)
        for down in (True, False):
            members = tiled(
                order,
                num_groups=num_groups,
                group_size=group_size,
                height=height,
                width=width,
                down=down,
            )
            key = np.sort(members, axis=1).tobytes()  # the cost ignores the order in a group
            if key not in seen:
                seen.add(key)
                yield members


def random_tiling(
    network: Network, *, shape: tuple[int, ...], random: np.random.Generator
) -> np.ndarray:
    """Return groups x members with a random size of tiles, and the islands in random order."""
    num_groups, group_size = shape
    height, width = (int(random.choice(_halves(size))) for size in (group_size, num_groups))
    islands = network.islands[random.integers(len(network.islands))]
    return tiled(
        packed_order(shuffled(islands, random=random), size=height * width),
        num_groups=num_groups,
        group_size=group_size,
        height=height,
        width=width,
        down=bool(random.integers(2)),
    )


def _halves(size: int) -> list[int]:
    """Return the size, half of it, and so on to 1; halves are rounded up.

    >>> _halves(5)
    [5, 3, 2, 1]
    """
    sizes = [size]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes
