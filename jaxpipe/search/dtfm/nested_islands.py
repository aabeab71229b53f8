"""Nested islands of a network: the devices that are close to each other, at every distance.

The whole tree of average linkage: a search packs groups of any size into islands of any scale.
`jaxpipe.topo.islands` keeps only the few levels between clear gaps, to show them to a person.
"""

from dataclasses import dataclass

import numpy as np

_EQUAL = 1e-6
"""Islands that merge at distances closer than this fraction merge at once."""


@dataclass(frozen=True, slots=True)
class Islands:
    """A tree: nodes below `num_devices` are devices, the others have `children`, the root is last.

    The children of a node are islands that merge at the same distance, the largest first::

        children    ((0, 1), (2, 3), (5, 6, 4))         0 1 near, 2 3 near, 4 alone: nodes 5, 6, 7
    """

    num_devices: int
    children: tuple[tuple[int, ...], ...]


def find_islands(distance: np.ndarray) -> Islands:
    """Return the islands of a network, from the distances between all devices.

    Of two directions the mean counts.

    >>> find_islands(np.array([[0, 9, 1], [9, 0, 9], [1, 9, 0]], dtype=float))
    Islands(num_devices=3, children=((0, 2), (3, 1)))

    Cost: O(n ** 2) time and memory for n devices.

    Source: average linkage, Sokal and Michener 1958, as in `scipy.cluster.hierarchy`.
    """
    num_devices = len(distance)
    if num_devices == 1:
        return Islands(1, ((0,),))
    from scipy.cluster.hierarchy import linkage  # slow to import, and ranks have no use for it
    from scipy.spatial.distance import squareform

    both = (distance + distance.T) / 2
    np.fill_diagonal(both, 0.0)
    merges = linkage(squareform(both, checks=False), "average")
    inner: dict[int, tuple[float, list[int]]] = {}
    sizes = dict.fromkeys(range(num_devices), 1)
    for node, (left, right, height, size) in enumerate(merges.tolist(), start=num_devices):
        members: list[int] = []
        for child in (int(left), int(right)):
            below, grandchildren = inner.get(child, (-1.0, []))
            # Merges at the same distance belong to one island, not to a nested pair.
            if grandchildren and below >= height * (1 - _EQUAL):
                members += inner.pop(child)[1]
            else:
                members.append(child)
        sizes[node] = int(size)
        inner[node] = (height, sorted(members, key=lambda child: -sizes[child]))
    return Islands(num_devices, _renumber(inner, num_devices=num_devices))


def _renumber(
    inner: dict[int, tuple[float, list[int]]], *, num_devices: int
) -> tuple[tuple[int, ...], ...]:
    """Return the children of the nodes that are left, numbered without gaps."""
    number = {node: num_devices + i for i, node in enumerate(sorted(inner))}
    return tuple(
        tuple(number.get(child, child) for child in inner[node][1]) for node in sorted(inner)
    )


def shuffled(islands: Islands, *, random: np.random.Generator) -> Islands:
    """Return the same islands, the children of each in random order."""
    children = (tuple(random.permutation(each).tolist()) for each in islands.children)
    return Islands(islands.num_devices, tuple(children))


def packed_order(islands: Islands, *, size: int) -> np.ndarray:
    """Return all devices in an order whose consecutive blocks of `size` lie in small islands.

    Each island is cut into as many whole blocks as it has; what is left joins what is left of its
    neighbours.

    >>> packed_order(Islands(5, ((0, 1, 2), (5, 3, 4))), size=2).tolist()
    [0, 1, 2, 3, 4]
    """
    blocks: dict[int, list[int]] = {device: [] for device in range(islands.num_devices)}
    rest: dict[int, list[int]] = {device: [device] for device in range(islands.num_devices)}
    root = islands.num_devices + len(islands.children) - 1
    for node, children in enumerate(islands.children, start=islands.num_devices):
        whole, left = blocks.pop(children[0]), rest.pop(children[0])
        for child in children[1:]:
            whole += blocks.pop(child)
            left += rest.pop(child)
        cut = len(left) // size * size
        blocks[node], rest[node] = whole + left[:cut], left[cut:]
    return np.array(blocks[root] + rest[root])
