"""A network prepared for search: hops as small integers, and interchangeable devices."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.search.dtfm.nested_islands import Islands, find_islands
from jaxpipe.search.dtfm.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """Weights, and what a search derives from them once.

    `ranks[a, b]` is the place of `weights.hop[a, b]` among the distinct hops, `seconds`: integers
    of few bits compare faster than floats. Devices with the same `twins` can be swapped without
    any effect. `islands` are those that hops see, and those that syncs see.
    """

    weights: Weights
    seconds: np.ndarray
    ranks: np.ndarray
    twins: np.ndarray
    islands: tuple[Islands, Islands]
    is_symmetric: bool

    def __len__(self) -> int:
        return len(self.ranks)


def prepare(weights: Weights) -> Network:
    """Return the network of these weights. Cost: O(n ** 2 log n).

    >>> far = np.array([[0, 2, 9], [2, 0, 9], [9, 9, 0]], dtype=float)
    >>> network = prepare(Weights(hop=far, sync=far))
    >>> network.ranks[0].tolist(), network.twins.tolist()
    ([0, 1, 2], [0, 0, 2])
    """
    seconds, places = np.unique(weights.hop, return_inverse=True)
    dtype = np.min_scalar_type(len(seconds))
    return Network(
        weights=weights,
        seconds=seconds,
        ranks=places.reshape(weights.hop.shape).astype(dtype),
        twins=_twins(weights),
        islands=(find_islands(weights.hop), find_islands(weights.sync)),
        is_symmetric=weights.is_symmetric,
    )


def _twins(weights: Weights) -> np.ndarray:
    """Return for each device the first one that is interchangeable with it."""
    sides = [weights.hop, weights.sync]
    if not weights.is_symmetric:
        sides += [weights.hop.T, weights.sync.T]
    twins = np.arange(len(weights.hop))
    firsts: dict[int, list[int]] = {}
    for device in range(len(twins)):
        # Equal sorted weights are necessary for twins; the exact test follows for candidates only.
        # Hashes of bytes differ between processes, twins do not: collisions only cost time.
        signature = hash(tuple(np.sort(side[device]).tobytes() for side in sides))
        alike = firsts.setdefault(signature, [])
        first = next((other for other in alike if _swappable(weights, other, device)), device)
        if first == device:
            alike.append(device)
        twins[device] = first
    return twins


def _swappable(weights: Weights, a: int, b: int) -> bool:
    """Return whether swapping two devices leaves both matrices as they are."""
    swapped = np.arange(len(weights.hop))
    swapped[[a, b]] = b, a
    return all(
        (matrix[a, swapped] == matrix[b]).all() and (matrix[swapped, a] == matrix[:, b]).all()
        for matrix in (weights.hop, weights.sync)
    )
