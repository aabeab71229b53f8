"""Gradients as flat vectors, one a bucket: a reduction moves one array, not one for each leaf."""

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.schedule import Bucket

Buckets = dict[Bucket, Float[Array | np.ndarray, " size"]]


def pack(gradients: Parameters, *, shared: bool) -> Buckets:
    """Return the gradients as vectors; with `shared`, the token embedding has its own."""
    parts = split(gradients, shared=shared)
    return {bucket: ravel_pytree(part)[0] for bucket, part in parts.items()}


def unpack(buckets: Buckets, like: Parameters, *, shared: bool) -> Parameters:
    """Return the gradients in the structure of `like`: the inverse of `pack`."""
    parts = split(like, shared=shared)
    trees = {
        bucket: ravel_pytree(part)[1](jnp.asarray(buckets[bucket]))
        for bucket, part in parts.items()
    }
    return merge(trees)


def merge(parts: dict[Bucket, Parameters]) -> Parameters:
    """Return the tree of which `split` has made the parts."""
    tree = parts[Bucket.STAGE]
    if Bucket.TIED not in parts:
        return tree
    return {**tree, "embed": {**tree["embed"], **parts[Bucket.TIED]}}


def split(tree: Parameters, *, shared: bool) -> dict[Bucket, Parameters]:
    """Return the parts of a tree like the parameters, one to a bucket."""
    if not shared:
        return {Bucket.STAGE: tree}
    rest = {name: leaf for name, leaf in tree["embed"].items() if name != "tokens"}
    return {
        Bucket.STAGE: {**tree, "embed": rest},
        Bucket.TIED: {"tokens": tree["embed"]["tokens"]},
    }
