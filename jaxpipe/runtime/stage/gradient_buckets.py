"""Gradients as flat vectors, one per reduction: an all-reduce moves one array, not one per leaf.

A tied embedding has a bucket of its own, since its gradient is all-reduced over the first and the
last stage of all replicas, and the rest of a stage over those that hold its layers. Where replicas
divide the layers differently, these are several segments (`jaxpipe.plan.segments`), with a vector
each; the embedding belongs to the first of all segments, the head to the last::

    stage of replica 0    embed  [ layer 0   layer 1   layer 2 ]
    stages of replica 1   embed  [ layer 0 ] [ layer 1   layer 2   layer 3 ]  head
    vectors of replica 0  ------------------ -------------------
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.schedule import Bucket

_SHORT_BYTES = 2

Buckets = dict[Bucket, tuple[Float[Array | np.ndarray, " _"], ...]]
"""The vectors of each bucket: of `Bucket.STAGE` one for each segment, of others one."""


def pack(gradients: Parameters, *, tied: bool, segments: Sequence[int] = ()) -> Buckets:
    """Return the gradients as vectors; with `tied`, the token embedding has its own.

    `segments` are the layers of each segment of the stage, by default one segment.
    """
    parts = _parts(gradients, tied=tied, segments=segments)
    return {bucket: tuple(_raveled(tree) for tree in trees) for bucket, trees in parts.items()}


def unpack(
    buckets: Buckets, like: Parameters, *, tied: bool, segments: Sequence[int] = ()
) -> Parameters:
    """Return the gradients in the structure of `like`: the inverse of `pack`.

    Vectors on the host stay there, where nothing is compiled.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
    parts = _parts(shapes, tied=tied, segments=segments)
    trees = {
        bucket: [
            _unraveled(vector, part)
            for vector, part in zip(buckets[bucket], parts[bucket], strict=True)
        ]
        for bucket in parts
    }
    return merge_buckets({bucket: joined(trees[bucket]) for bucket in trees})


def _raveled(tree: Parameters) -> Float[Array, " _"]:
    """Return the leaves of a tree one behind the other; of none, an empty vector."""
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree)]
    return concatenated(leaves) if leaves else jnp.zeros(0)


def concatenated(leaves: Sequence[Array | np.ndarray]) -> Array:
    """Return arrays joined along their first dim, bit for bit, in the widest of their formats.

    On CPUs XLA computes in float32 what it is given in 16 bits, joins included, and keeps all of it
    in float32 while it does: as integers they are joined as they are.
    """
    dtype = jnp.result_type(*leaves)
    leaves = [leaf.astype(dtype) for leaf in leaves]
    if dtype.itemsize != _SHORT_BYTES:
        return jnp.concatenate(leaves)
    bits = [jax.lax.bitcast_convert_type(leaf, jnp.uint16) for leaf in leaves]
    return jax.lax.bitcast_convert_type(jnp.concatenate(bits), dtype)


def _unraveled(vector: Any, like: Parameters) -> Parameters:
    """Return a vector as leaves of these shapes and dtypes."""
    leaves, form = jax.tree.flatten(like)
    *inner, size = accumulate((leaf.size for leaf in leaves), initial=0)
    assert vector.shape == (size,), (vector.shape, size)
    split = np.split if isinstance(vector, np.ndarray) else jnp.split
    pieces = split(vector, inner[1:]) if leaves else []
    return jax.tree.unflatten(
        form,
        [
            piece.reshape(leaf.shape).astype(leaf.dtype)
            for piece, leaf in zip(pieces, leaves, strict=True)
        ],
    )


def _parts(
    tree: Parameters, *, tied: bool, segments: Sequence[int]
) -> dict[Bucket, list[Parameters]]:
    parts = {bucket: [part] for bucket, part in split_buckets(tree, tied=tied).items()}
    (stage,) = parts[Bucket.STAGE]
    return {**parts, Bucket.STAGE: by_segment(stage, segments)}


def by_segment(stage: Parameters, segments: Sequence[int]) -> list[Parameters]:
    """Return the parameters of each segment; the embedding in the first, the head in the last.

    Leaves may be shapes. No `segments` are one.
    """
    if len(segments) <= 1:
        return [stage]
    cut: list[Parameters] = [
        {"blocks": jax.tree.map(lambda leaf, a=a, b=b: _layers(leaf, a, b), stage["blocks"])}
        for a, b in pairwise([0, *accumulate(segments)])
    ]
    for name, segment in (("embed", cut[0]), ("head", cut[-1])):
        if name in stage:
            segment[name] = stage[name]
    return cut


def _layers(leaf: Any, start: int, stop: int) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((stop - start, *leaf.shape[1:]), leaf.dtype)
    return leaf[start:stop]


def joined(segments: Sequence[Parameters]) -> Parameters:
    """Return the parameters of a stage: the inverse of `by_segment`; also of flat pieces of it."""
    if len(segments) == 1:
        return segments[0]
    blocks = jax.tree.map(
        lambda *leaf: _concatenated(leaf), *(segment["blocks"] for segment in segments)
    )
    return {**segments[0], **segments[-1], "blocks": blocks}


def _concatenated(leaves: Sequence[Any]) -> Any:
    on_host = all(isinstance(leaf, np.ndarray) for leaf in leaves)
    return np.concatenate(leaves) if on_host else concatenated(leaves)


def merge_buckets(parts: dict[Bucket, Parameters]) -> Parameters:
    """Return one tree: the inverse of `split_buckets`."""
    tree = parts[Bucket.STAGE]
    if Bucket.TIED not in parts:
        return tree
    return {**tree, "embed": {**tree["embed"], **parts[Bucket.TIED]}}


def split_buckets(tree: Parameters, *, tied: bool) -> dict[Bucket, Parameters]:
    """Return one tree per bucket, from a tree with the structure of the parameters."""
    if not tied:
        return {Bucket.STAGE: tree}
    # A frozen table has no gradient: its bucket is empty.
    embed = tree.get("embed", {})
    tokens = {name: leaf for name, leaf in embed.items() if name == "tokens"}
    # The rest of "embed", such as learned positions, belongs to the first stage alone.
    rest = {name: leaf for name, leaf in embed.items() if name != "tokens"}
    return {Bucket.STAGE: {**tree, "embed": rest}, Bucket.TIED: tokens}
