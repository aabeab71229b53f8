"""Which part of a stage's optimizer one replica holds, where the replicas share it out (ZeRO-1).

All parameters of the stage, one after the other, are cut into equal parts, whatever leaf they are
of; a replica holds the moments of its part, as a flat piece of each leaf, which may be empty::

    leaves      |---- up kernel ----|-- down kernel --|-b-|
    replicas    |------- 0 -------|------- 1 -------|---- 2 -|   sizes differ by one at most

AdamW takes each number by itself, so a piece becomes what it becomes as part of its leaf, but for
the last bit: over flat pieces XLA may fuse a multiplication with the other addend. Pieces of
leaves, and not one vector, because weight decay is told apart by leaf. They are put together on the
host, where they travel from. A tied embedding is not shared out: the first and the last stage would
cut it at different places, and its copies would part in the last bit.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, section 5.1. Gradients are summed whole here, and parameters gathered after the update.
"""

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxpipe.collective.shards import Part
from jaxpipe.runtime.stage.model import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerShard:
    """The part `index` of `count` equal ones."""

    index: int
    count: int

    def part(self, *, size: int) -> Part:
        """Return which of `size` numbers are of this share."""
        return Part(0, size).cut(self.count)[self.index]

    def pieces(self, tree: Parameters) -> Parameters:
        """Return the part of each leaf that is of this share, flat; on the host without a copy.

        >>> tree = {"a": np.array([[1, 2], [3, 4]]), "b": np.array([5])}
        >>> OptimizerShard(index=0, count=2).pieces(tree)
        {'a': array([1, 2]), 'b': array([], dtype=int64)}
        >>> OptimizerShard(index=1, count=2).pieces(tree)
        {'a': array([3, 4]), 'b': array([5])}
        """
        mine, start = self.part(size=size_of(tree)), 0
        leaves, structure = jax.tree.flatten(tree)
        found = []
        for leaf in leaves:
            first, last = (min(max(edge - start, 0), leaf.size) for edge in mine)
            found.append(leaf.reshape(-1)[first:last])
            start += leaf.size
        return jax.tree.unflatten(structure, found)


def size_of(tree: Any) -> int:
    """Return how many numbers the leaves have; shapes without numbers do."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def joined(pieces: Parameters) -> np.ndarray:
    """Return the pieces of one share as a vector, on the host."""
    return np.concatenate([np.asarray(piece) for piece in jax.tree.leaves(pieces)])


def whole_tree(flat: Array | np.ndarray, like: Any) -> Parameters:
    """Return what all shares are together in the structure of `like`, which may be of shapes.

    >>> like = {"a": jax.ShapeDtypeStruct((2, 1), int), "b": jax.ShapeDtypeStruct((1,), int)}
    >>> whole_tree(np.array([1, 2, 3]), like)
    {'a': array([[1],
           [2]]), 'b': array([3])}
    """
    leaves, structure = jax.tree.flatten(like)
    stops = accumulate(math.prod(leaf.shape) for leaf in leaves)
    edges = pairwise([0, *stops])
    parts = [
        flat[start:stop].reshape(leaf.shape)
        for leaf, (start, stop) in zip(leaves, edges, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)
