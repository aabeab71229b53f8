"""ZeRO-1: which part of a stage's optimizer each replica holds.

All parameters of the stage, one after the other, are divided into equal shards, whichever leaf they
belong to; a replica holds the moments of its shard, as a flat piece of each leaf, possibly empty::

    leaves      |---- up kernel ----|-- down kernel --|-b-|
    replicas    |------- 0 -------|------- 1 -------|---- 2 -|   sizes differ by one at most

Where replicas divide the layers differently, this holds for each segment of the stage
(`jaxpipe.plan.segments`), which is what ranks of all replicas hold: a rank has one shard of each.
Its piece of a leaf of stacked layers is that of all its segments, one after the other::

    stage of replica 0    layer 0   layer 1   layer 2        segments  [ 0 ] [ 1   2 ]
    piece of a leaf       |-0-|     |-----0-----|

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxpipe.collective.shards import ElementRange
from jaxpipe.runtime.stage.gradient_buckets import (
    by_segment,
    joined,
    merge_buckets,
    split_buckets,
)
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.schedule import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerShard:
    """The shard `index` of `count` equal ones."""

    index: int
    count: int

    def part(self, *, size: int) -> ElementRange:
        """Return the range of this shard among `size` numbers."""
        return ElementRange(0, size).cut(self.count)[self.index]

    def pieces(self, tree: Parameters) -> Parameters:
        """Return the piece of each leaf in this shard, flat; on the host without a copy.

        >>> tree = {"a": np.array([[1, 2], [3, 4]]), "b": np.array([5])}
        >>> OptimizerShard(index=0, count=2).pieces(tree)
        {'a': array([1, 2]), 'b': array([], dtype=int64)}
        >>> OptimizerShard(index=1, count=2).pieces(tree)
        {'a': array([3, 4]), 'b': array([5])}
        """
        leaves, structure = jax.tree.flatten(tree)
        ranges = self.ranges(leaves)
        parts = [leaf.reshape(-1)[a:b] for leaf, (a, b) in zip(leaves, ranges, strict=True)]
        return jax.tree.unflatten(structure, parts)

    def ranges(self, leaves: Sequence[Any]) -> Iterator[ElementRange]:
        """Yield the range of this shard within each of the flat leaves; empty if outside of it."""
        mine, start = self.part(size=size_of(leaves)), 0
        for leaf in leaves:
            size = size_of(leaf)
            yield ElementRange(*(min(max(edge - start, 0), size) for edge in mine))
            start += size


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedParameters:
    """The parameters of one stage of which replicas shard the optimizer, and one replica's shards.

    `shards` has one for each of the `segments`, numbers of layers; no `segments` are one. `shapes`
    are those of the whole parameters; `tied` tells whether a tied embedding is among them. Every
    method also applies to moments, which have the structure of the parameters.
    """

    shards: tuple[OptimizerShard, ...]
    segments: tuple[int, ...]
    shapes: Parameters
    tied: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers of each segment all replicas shard, without a tied embedding."""
        return tuple(size_of(part) for part in self._parts(self.shapes))

    def owned(self, tree: Parameters) -> Parameters:
        """Return what this replica updates: its pieces, and the tied embedding whole."""
        parts = zip(self.shards, self._parts(tree), strict=True)
        pieces = joined([shard.pieces(part) for shard, part in parts])
        return merge_buckets({**split_buckets(tree, tied=self.tied), Bucket.STAGE: pieces})

    def num_bytes(self, owned: Parameters) -> int:
        """Return the size of this replica's pieces."""
        return sum(piece.nbytes for piece in jax.tree.leaves(self._sharded(owned)))

    def vectors(self, owned: Parameters) -> tuple[np.ndarray, ...]:
        """Return this replica's pieces as one vector for each segment, on the host."""
        leaves, _ = jax.tree.flatten_with_path(self._sharded(owned))
        left = {path: np.asarray(leaf) for path, leaf in leaves}
        dtype = leaves[0][1].dtype
        results = []
        for shard, part in zip(self.shards, self._parts(self.shapes), strict=True):
            shapes, _ = jax.tree.flatten_with_path(part)
            ranges = shard.ranges([shape for _, shape in shapes])
            pieces = [np.empty(0, dtype)]  # a segment may have no leaf that is trained
            for (path, _), piece in zip(shapes, ranges, strict=True):
                # A leaf of stacked layers has the pieces of all segments, in their order.
                pieces.append(left[path][: piece.size])
                left[path] = left[path][piece.size :]
            results.append(np.concatenate(pieces))
        return tuple(results)

    def join(self, vectors: Sequence[Array | np.ndarray], owned: Parameters) -> Parameters:
        """Return the whole tree, given each segment's vector of all replicas, and the owned."""
        parts = zip(vectors, self._parts(self.shapes), strict=True)
        stage = joined([whole_tree(vector, part) for vector, part in parts])
        return merge_buckets({**split_buckets(owned, tied=self.tied), Bucket.STAGE: stage})

    def _sharded(self, tree: Parameters) -> Parameters:
        return split_buckets(tree, tied=self.tied)[Bucket.STAGE]

    def _parts(self, tree: Parameters) -> list[Parameters]:
        return by_segment(self._sharded(tree), self.segments)


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
