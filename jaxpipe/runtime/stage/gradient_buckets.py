"""Gradients as flat vectors, one per bucket: an all-reduce moves one array, not one per leaf.

A tied embedding has a bucket of its own, since its gradient is all-reduced over the first and the
last stage of all replicas, and the rest of a stage over the replicas of that stage alone.
"""

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.schedule import Bucket

Buckets = dict[Bucket, Float[Array | np.ndarray, " size"]]


def pack(gradients: Parameters, *, tied: bool) -> Buckets:
    """Return the gradients as vectors; with `tied`, the token embedding has its own."""
    parts = split_buckets(gradients, tied=tied)
    return {bucket: ravel_pytree(part)[0] for bucket, part in parts.items()}


def unpack(buckets: Buckets, like: Parameters, *, tied: bool) -> Parameters:
    """Return the gradients in the structure of `like`: the inverse of `pack`."""
    parts = split_buckets(like, tied=tied)
    trees = {
        bucket: ravel_pytree(part)[1](jnp.asarray(buckets[bucket]))
        for bucket, part in parts.items()
    }
    return merge_buckets(trees)


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
    # The rest of "embed", such as learned positions, belongs to the first stage alone.
    rest = {name: leaf for name, leaf in tree["embed"].items() if name != "tokens"}
    return {
        Bucket.STAGE: {**tree, "embed": rest},
        Bucket.TIED: {"tokens": tree["embed"]["tokens"]},
    }
