"""New groupings: mix two good ones, shake one, or tile the islands in another order."""

from collections.abc import Sequence

import numpy as np

from jaxpipe.search.dtfm.network import Network
from jaxpipe.search.dtfm.tiles import random_tiling

_TILINGS = 0.3
_MEAN_SHAKEN = 6


def offspring(
    network: Network, parents: Sequence[np.ndarray], *, random: np.random.Generator
) -> np.ndarray:
    """Return a new grouping, groups x members; better parents, which come first, are likelier."""
    # Squaring favours small indices: the better parents come first.
    first, second = (parents[int(len(parents) * random.random() ** 2)] for _ in range(2))
    if random.random() < _TILINGS:
        return random_tiling(network, shape=first.shape, random=random)
    if first is not second and random.random() < 0.5:
        return mix(first, second, random=random)
    return shake(first, num_devices=len(network), random=random)


def mix(first: np.ndarray, second: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
    """Return some groups of the first parent, then what they lack in the second one's order.

    Source: Falkenauer, "A hybrid grouping genetic algorithm for bin packing", 1996: groups, not
    single members, are what is inherited.
    """
    kept = first[random.random(len(first)) < random.random()]
    left = second[~np.isin(second, kept)]
    # Parents that leave out different devices: the second may not fill what is free.
    missing = first[~np.isin(first, kept) & ~np.isin(first, left)]
    devices = np.concatenate((kept.ravel(), left, missing))
    return devices[: first.size].reshape(first.shape)


def shake(parent: np.ndarray, *, num_devices: int, random: np.random.Generator) -> np.ndarray:
    """Return the parent with a few of all devices shuffled, those left out among them."""
    outside = np.setdiff1d(np.arange(num_devices), parent)
    devices = np.concatenate((parent.ravel(), outside))
    # At least two: one device alone has no other place.
    count = min(num_devices, 2 + int(random.geometric(1 / _MEAN_SHAKEN)))
    places = random.choice(num_devices, count, replace=False)
    devices[places] = devices[random.permutation(places)]
    return devices[: parent.size].reshape(parent.shape)
