"""The trained parameters of a stage as vectors, one for each fragment, that are exchanged whole.

What is frozen is equal on all islands, and in no vector.

A tied embedding has a vector of its own. Its first stage alone takes the outer step for it; the
last one receives the result, so that both have the same bits and it crosses between islands once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpipe.comm import OUTER_TAG
from jaxpipe.outer import fragment_of
from jaxpipe.runtime.checkpoint import shapes

CONTROL_TAG = OUTER_TAG
"""The tag of the scalars that all ranks sum when an outer step ends."""

TIED_NAME = "embed.tokens"
FLOAT32 = np.dtype(np.float32)


class OuterBucket(NamedTuple):
    """The tensors of a stage that are in a fragment, with or without a tied embedding."""

    stage: int
    fragment: int
    is_tied: bool = False

    def tag(self, *, num_fragments: int) -> int:
        """Return a tag of its own.

        >>> OuterBucket(stage=0, fragment=0).tag(num_fragments=2) - CONTROL_TAG
        1
        """
        return CONTROL_TAG + 1 + 2 * (self.stage * num_fragments + self.fragment) + self.is_tied


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLayout:
    """The tensors of a bucket, by name, in the order in which its vector has them.

    `dtype` is that of the parameters, and float32 at least.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtype: np.dtype = FLOAT32

    @property
    def size(self) -> int:
        """The number of values."""
        return sum(map(prod, self.shapes.values()))

    def pack(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values as one vector, in fresh memory.

        >>> layout = BucketLayout(shapes={"a": (2,), "b": ()})
        >>> layout.pack({"b": np.array(3), "a": np.array([1, 2])})
        array([1., 2., 3.], dtype=float32)
        """
        return np.concatenate(
            [np.asarray(tensors[name], self.dtype).reshape(-1) for name in self.shapes]
        )

    def unpack(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the tensors as views of the vector.

        >>> BucketLayout(shapes={"a": (2, 1)}).unpack(np.float32([1, 2]))["a"].tolist()
        [[1.0], [2.0]]
        """
        tensors: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + prod(shape)
            tensors[name] = vector[start:stop].reshape(shape)
            start = stop
        return tensors


def bucket_layouts(
    params: Mapping[str, Any],
    *,
    stage: int,
    first_layer: int,
    num_fragments: int,
    has_tied: bool,
    is_trained: Callable[[str], bool],
) -> dict[OuterBucket, BucketLayout]:
    """Return the buckets of a stage, none of them empty, in the order of their fragments.

    `params` are the parameters of the stage, or their shapes; `has_tied` tells whether another
    stage has the same token embedding, `is_trained` which names are trained.
    """
    shapes_of: dict[OuterBucket, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes(params, first_layer=first_layer).items():
        if not is_trained(name):
            continue
        fragment = fragment_of(name, num_fragments=num_fragments)
        bucket = OuterBucket(stage, fragment, has_tied and name == TIED_NAME)
        shapes_of.setdefault(bucket, {})[name] = shape
    dtype = np.result_type(FLOAT32, *{leaf.dtype for leaf in jax.tree.leaves(params)})
    return {
        bucket: BucketLayout(shapes=shapes_of[bucket], dtype=dtype) for bucket in sorted(shapes_of)
    }


def of_fragment(buckets: Collection[OuterBucket], fragment: int) -> list[OuterBucket]:
    """Return the buckets of a fragment, in their order."""
    return [bucket for bucket in buckets if bucket.fragment == fragment]
