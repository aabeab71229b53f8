"""Blocks of near devices that are placed as one: a large problem made small."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.plan.dtfm.islands import packed_order
from jaxpipe.plan.dtfm.network import Network
from jaxpipe.plan.dtfm.weights import Weights

_BLOCKS_PER_GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """`devices` is blocks x devices in each; `weights` are those between whole blocks."""

    devices: np.ndarray
    weights: Weights


def block_size(group_size: int) -> int:
    """Return how many devices a block holds: the fewest that leave a group with 8 blocks at most.

    Where no divisor leaves a group with two blocks or more, blocks are single devices.

    >>> [block_size(size) for size in (8, 12, 64, 11)]
    [1, 2, 8, 1]
    """
    fitting = (
        size
        for size in range(1, group_size // 2 + 1)
        if group_size % size == 0 and group_size // size <= _BLOCKS_PER_GROUP
    )
    return next(fitting, 1)


def coarsen(network: Network, *, size: int) -> Blocks:
    """Return blocks of `size` near devices, and weights that bound those of their devices.

    A hop between blocks is the lower bound `reach` of their matching, close to it since the devices
    of a block are alike; a sync is an upper bound, what the busiest device of a block spends on
    all of the other. Devices that do not fill a block are left out, fewer than `size`.

    >>> from jaxpipe.plan.dtfm.network import prepare
    >>> far = np.array([[0, 1, 5, 6], [1, 0, 7, 5], [5, 7, 0, 2], [6, 5, 2, 0]], dtype=float)
    >>> blocks = coarsen(prepare(Weights(hop=far, sync=far)), size=2)
    >>> blocks.devices.tolist(), float(blocks.weights.hop[0, 1]), float(blocks.weights.sync[0, 1])
    ([[0, 1], [2, 3]], 5.0, 12.0)

    Cost: O(n ** 2) time and memory for n devices.
    """
    weights = network.weights
    order = packed_order(network.islands[0], size=size)
    count = len(order) // size
    devices = order[: count * size]
    shape = (count, size, count, size)
    hop = weights.hop[np.ix_(devices, devices)].reshape(shape)
    sync = weights.sync[np.ix_(devices, devices)].reshape(shape)
    reach = np.maximum(hop.min(axis=3).max(axis=1), hop.min(axis=1).max(axis=2))
    np.fill_diagonal(reach, 0.0)
    return Blocks(
        devices=devices.reshape(count, size),
        weights=Weights(hop=reach, sync=sync.sum(axis=3).max(axis=1)),
    )
