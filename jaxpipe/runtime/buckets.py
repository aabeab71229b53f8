"""Gradients as flat vectors, one a bucket: a reduction moves one array, not one for each leaf."""

from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxpipe.runtime.model import Parameters
from jaxpipe.schedule import Bucket

Buckets = dict[Bucket, Float[Array, " size"]]


def pack(gradients: Parameters, *, shared: bool) -> Buckets:
    """Return the gradients as vectors; with `shared`, the token embedding has its own."""
    parts = _split(gradients, shared=shared)
    return {bucket: ravel_pytree(part)[0] for bucket, part in parts.items()}


def unpack(buckets: Buckets, like: Parameters, *, shared: bool) -> Parameters:
    """Return the gradients in the structure of `like`: the inverse of `pack`."""
    parts = _split(like, shared=shared)
    trees = {bucket: ravel_pytree(part)[1](buckets[bucket]) for bucket, part in parts.items()}
    gradients = trees[Bucket.STAGE]
    if shared:
        embed = {**gradients["embed"], **trees[Bucket.SHARED]}
        gradients = {**gradients, "embed": embed}
    return gradients


def _split(tree: Parameters, *, shared: bool) -> dict[Bucket, Parameters]:
    if not shared:
        return {Bucket.STAGE: tree}
    rest = {name: leaf for name, leaf in tree["embed"].items() if name != "tokens"}
    return {
        Bucket.STAGE: {**tree, "embed": rest},
        Bucket.SHARED: {"tokens": tree["embed"]["tokens"]},
    }
