"""ZeRO-1: which part of a stage's optimizer each replica holds.

All parameters of the stage, one after the other, are divided into equal shards, whichever leaf they
belong to; a replica holds the moments of its shard, as a flat piece of each leaf, possibly empty::

    leaves      |---- up kernel ----|-- down kernel --|-b-|
    replicas    |------- 0 -------|------- 1 -------|---- 2 -|   sizes differ by one at most

AdamW treats each number by itself, so the update of a piece equals that of its leaf but for the
last bit: over flat pieces XLA may fuse a multiplication with the other addend. A shard consists of
pieces of leaves, not of one vector, because weight decay depends on the leaf. A tied embedding is
not sharded: the first and the last stage would divide it at different places, and its copies would
differ in the last bit.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, section 5.1. Here gradients are all-reduced whole, and parameters all-gathered after the
update.
"""

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxpipe.collective.shards import Part
from jaxpipe.runtime.stage.gradient_buckets import merge_buckets, split_buckets
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.schedule import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerShard:
    """The shard `index` of `count` equal ones."""

    index: int
    count: int

    def part(self, *, size: int) -> Part:
        """Return the range of this shard among `size` numbers."""
        return Part(0, size).cut(self.count)[self.index]

    def pieces(self, tree: Parameters) -> Parameters:
        """Return the piece of each leaf in this shard, flat; on the host without a copy.

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
            # The part of the shard that is within this leaf; empty if they do not overlap.
            first, last = (min(max(edge - start, 0), leaf.size) for edge in mine)
            found.append(leaf.reshape(-1)[first:last])
            start += leaf.size
        return jax.tree.unflatten(structure, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedParameters:
    """The parameters of one stage of which replicas shard the optimizer, and one replica's shard.

    `shapes` are those of the whole parameters; `tied` tells whether a tied embedding is among them.
    Every method also applies to moments, which have the structure of the parameters.
    """

    shard: OptimizerShard
    shapes: Parameters
    tied: bool

    @property
    def size(self) -> int:
        """How many numbers all replicas shard, without a tied embedding."""
        return size_of(self._sharded(self.shapes))

    def owned(self, tree: Parameters) -> Parameters:
        """Return what this replica updates: its pieces, and the tied embedding whole."""
        buckets = split_buckets(tree, tied=self.tied)
        return merge_buckets({**buckets, Bucket.STAGE: self.shard.pieces(buckets[Bucket.STAGE])})

    def num_bytes(self, owned: Parameters) -> int:
        """Return the size of this replica's pieces."""
        return sum(piece.nbytes for piece in jax.tree.leaves(self._sharded(owned)))

    def flat(self, owned: Parameters) -> np.ndarray:
        """Return this replica's pieces as one vector, on the host, from where it is sent."""
        return np.concatenate([np.asarray(x) for x in jax.tree.leaves(self._sharded(owned))])

    def join(self, flat: Array | np.ndarray, owned: Parameters) -> Parameters:
        """Return the whole tree, given the vector of all replicas and what this one owns."""
        stage = whole_tree(flat, self._sharded(self.shapes))
        return merge_buckets({**split_buckets(owned, tied=self.tied), Bucket.STAGE: stage})

    def _sharded(self, tree: Parameters) -> Parameters:
        return split_buckets(tree, tied=self.tied)[Bucket.STAGE]


def size_of(tree: Any) -> int:
    """Return how many numbers the leaves have, which may be arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def whole_tree(flat: Array | np.ndarray, like: Any) -> Parameters:
    """Return the concatenated shards in the structure of `like`, which may consist of shapes.

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
