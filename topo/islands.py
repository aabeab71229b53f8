"""Islands: devices much closer to each other than to the rest, and islands of islands.

The distance of two devices is the time of a message of 8 MiB, the activation of one microbatch of
GPT-3 XL, in the slower direction. Devices join along the shortest distances first; where the next
distance that joins anything is much longer than the last one, the joined devices are an island::

    distance   0.01   0.01   0.04   0.2        (0 1) (2 3)     an island each, of hosts
               0-1    2-3    1-2    3-4      ((0 1) (2 3)) 4   an island of islands: a region

This is single linkage, split at its gaps: few levels, the same for slightly different
measurements, to be shown to a person. `jaxpipe.search.dtfm.nested_islands` has the whole tree by
average linkage, since a search packs groups of devices at every scale, and one near pair must not
chain two regions together.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Island: TypeAlias = "int | tuple[Island, ...]"

_MESSAGE_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edge:
    """A pair of devices whose distance joins their islands."""

    distance: float
    a: int
    b: int


def message_seconds(
    latency_s: np.ndarray, bandwidth_bytes_per_s: np.ndarray, *, num_bytes: int = _MESSAGE_BYTES
) -> np.ndarray:
    """Return the seconds of a message between all pairs, in the slower direction: symmetric."""
    seconds = latency_s + num_bytes / bandwidth_bytes_per_s
    return np.maximum(seconds, seconds.T)


def find_islands(distance: np.ndarray, *, gap: float = 1.5) -> tuple[Island, ...]:
    """Return the islands, in the order of their first devices, each a nested tuple.

    `distance` is symmetric. The shortest distance out of an island is at least `gap` times the
    longest step inside; without such a gap all devices are on one level.

    Cost: O(n^2) time for n devices.

    >>> near, far = 1.0, 9.0
    >>> find_islands(np.array([[0, near, far], [near, 0, far], [far, far, 0]]))
    ((0, 1), 2)
    >>> find_islands(np.ones((3, 3)))
    (0, 1, 2)

    Raises:
        ValueError: the matrix is not symmetric, or the gap is not above 1.
    """
    if not gap > 1:
        raise ValueError(f"`gap` must be above 1, not {gap}")
    if distance.shape != distance.T.shape or not np.array_equal(distance, distance.T):
        raise ValueError(f"`distance` must be symmetric; its shape is {distance.shape}")
    edges = sorted(_spanning_tree(distance), key=lambda edge: edge.distance)
    islands = _Islands(len(distance))
    reached = 0.0
    for edge in edges:
        # `>`, too: distances of 0 are no gap.
        if edge.distance > reached and edge.distance >= gap * reached:
            islands.close()
        islands.join(edge.a, edge.b)
        reached = edge.distance
    return islands.all()


def _spanning_tree(distance: np.ndarray) -> list[_Edge]:
    """Return a minimum spanning tree (Prim, 1957)."""
    num = len(distance)
    edges: list[_Edge] = []
    inside = np.zeros(num, bool)
    nearest = np.zeros(num, int)  # for each device outside: the one inside that is nearest
    to_inside = np.full(num, np.inf)
    newest = 0
    # One device per pass: O(n) each, no heap, which is best where all pairs have an edge.
    for _ in range(num - 1):
        inside[newest] = True
        # Strict: of equal distances the first device stays nearest, on every machine.
        closer = ~inside & (distance[newest] < to_inside)
        to_inside[closer], nearest[closer] = distance[newest][closer], newest
        newest = int(np.argmin(np.where(inside, np.inf, to_inside)))
        edges.append(_Edge(distance=float(to_inside[newest]), a=int(nearest[newest]), b=newest))
    return edges


def flatten(island: Island) -> tuple[int, ...]:
    """Return the devices of an island and of the islands in it.

    >>> flatten(((0, 1), 2))
    (0, 1, 2)
    """
    if isinstance(island, int):
        return (island,)
    return tuple(device for member in island for device in flatten(member))


class _Islands:
    """Islands under construction: an open island has members, a closed one is a member itself."""

    def __init__(self, num: int) -> None:
        self._members: dict[int, list[Island]] = {i: [i] for i in range(num)}
        self._home = list(range(num))
        self._devices = {i: [i] for i in range(num)}

    def join(self, a: int, b: int) -> None:
        """Merge the islands of two devices."""
        # Each merge relabels one side: O(n^2) in all at worst.
        stays, goes = self._home[a], self._home[b]
        for device in self._devices[goes]:
            self._home[device] = stays
        self._devices[stays] += self._devices.pop(goes)
        self._members[stays] += self._members.pop(goes)

    def close(self) -> None:
        """Close the islands of several members: each becomes one member."""
        for home, members in self._members.items():
            if len(members) > 1:
                self._members[home] = [tuple(sorted(members, key=_first))]

    def all(self) -> tuple[Island, ...]:
        """Return all islands, those that were never closed by their members."""
        members = [member for group in self._members.values() for member in group]
        return tuple(sorted(members, key=_first))


def _first(island: Island) -> int:
    return flatten(island)[0]
