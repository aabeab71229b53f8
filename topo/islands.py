"""Islands: devices that are much nearer to each other than to the rest, and islands of islands.

The distance of two devices is the time of a message of 8 MiB, which is one microbatch's activation
of GPT-3 XL, in the slower direction. Devices join along the shortest distances first; where the
next distance that joins anything is much longer than the last one, what has joined is an island::

    distance   0.01   0.01   0.04   0.2        (0 1) (2 3)     an island each, of hosts
               0-1    2-3    1-2    3-4      ((0 1) (2 3)) 4   an island of islands: a region

That is single linkage, cut at its gaps.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Island: TypeAlias = "int | tuple[Island, ...]"

_MESSAGE_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joint:
    """Two devices whose distance joins their islands."""

    distance: float
    a: int
    b: int


def message_seconds(
    latency_s: np.ndarray, bandwidth_bytes_per_s: np.ndarray, *, num_bytes: int = _MESSAGE_BYTES
) -> np.ndarray:
    """Return how long a message takes from each to each, in the slower direction: symmetric."""
    seconds = latency_s + num_bytes / bandwidth_bytes_per_s
    return np.maximum(seconds, seconds.T)


def find_islands(distance: np.ndarray, *, gap: float = 1.5) -> tuple[Island, ...]:
    """Return the islands, in the order of their first devices, each a nested tuple.

    `distance` is symmetric; `gap` is how many times longer the way out of an island is than the
    longest step inside. Without a gap all are one level. Takes O(n^2) time for n devices.

    >>> near, far = 1.0, 9.0
    >>> find_islands(np.array([[0, near, far], [near, 0, far], [far, far, 0]]))
    ((0, 1), 2)
    >>> find_islands(np.ones((3, 3)))
    (0, 1, 2)

    Raises:
        ValueError: the matrix is not symmetric, or the gap is not above 1.
    """
    if not gap > 1:
        raise ValueError(f"`gap` must be above 1, is {gap}")
    if distance.shape != distance.T.shape or not np.array_equal(distance, distance.T):
        raise ValueError(f"`distance` must be symmetric, is not; its shape is {distance.shape}")
    joints = sorted(_shortest_joints(distance), key=lambda joint: joint.distance)
    islands = _Islands(len(distance))
    reached = 0.0
    for joint in joints:
        if joint.distance > reached and joint.distance >= gap * reached:
            islands.close()
        islands.join(joint.a, joint.b)
        reached = joint.distance
    return islands.all()


def _shortest_joints(distance: np.ndarray) -> list[_Joint]:
    """Return a minimum spanning tree (Prim, 1957)."""
    num = len(distance)
    joints: list[_Joint] = []
    inside = np.zeros(num, bool)
    nearest = np.zeros(num, int)  # for each device outside: the one inside that is nearest
    to_inside = np.full(num, np.inf)
    newest = 0
    for _ in range(num - 1):
        inside[newest] = True
        closer = ~inside & (distance[newest] < to_inside)
        to_inside[closer], nearest[closer] = distance[newest][closer], newest
        newest = int(np.argmin(np.where(inside, np.inf, to_inside)))
        joints.append(_Joint(distance=float(to_inside[newest]), a=int(nearest[newest]), b=newest))
    return joints


def flatten(island: Island) -> tuple[int, ...]:
    """Return all the devices of an island.

    >>> flatten(((0, 1), 2))
    (0, 1, 2)
    """
    if isinstance(island, int):
        return (island,)
    return tuple(device for member in island for device in flatten(member))


class _Islands:
    """Islands while they join: members of an island that is open, closed ones as one member."""

    def __init__(self, num: int) -> None:
        self._members: dict[int, list[Island]] = {i: [i] for i in range(num)}
        self._home = list(range(num))
        self._devices = {i: [i] for i in range(num)}

    def join(self, a: int, b: int) -> None:
        """Make one of the islands of two devices."""
        stays, goes = self._home[a], self._home[b]
        for device in self._devices[goes]:
            self._home[device] = stays
        self._devices[stays] += self._devices.pop(goes)
        self._members[stays] += self._members.pop(goes)

    def close(self) -> None:
        """Make every island with several members one member."""
        for home, members in self._members.items():
            if len(members) > 1:
                self._members[home] = [tuple(sorted(members, key=_first))]

    def all(self) -> tuple[Island, ...]:
        """Return the members of what has joined."""
        members = [member for each in self._members.values() for member in each]
        return tuple(sorted(members, key=_first))


def _first(island: Island) -> int:
    return flatten(island)[0]
