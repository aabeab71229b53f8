"""Collectives over many arrays at once, in one flat buffer per format.

Each function returns what one collective per array would return, with a single collective::

    all-reduce      ravel, concatenate ─ psum ─ cut apart
    reduce-scatter  the split dim first, in as many parts as devices ─ psum_scatter ─ cut apart
    all-gather      ravel, concatenate ─ all_gather ─ cut apart, the parts side by side
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jaxpipe.baselines.autoshard.strategy import Axes, MeshShape


def names(axes: Axes) -> tuple[str, ...]:
    """Return the names of the axes in `shard_map`."""
    return tuple(axis.label for axis in axes)


def reduce_all(pieces: Sequence[Array], axes: Axes, *, join: Callable[..., Array]) -> list[Array]:
    """Return the sum (or what `join` makes) over the devices along the axes, of each array."""
    if len(pieces) == 1:
        return [join(pieces[0], names(axes))]
    return _cut_apart(join(_flat(pieces), names(axes)), [piece.shape for piece in pieces])


def reduce_scatter_all(
    pieces: Sequence[Array], dims: Sequence[int], axes: Axes, *, mesh: MeshShape
) -> list[Array]:
    """Return this device's shard along `dims` of the sum of each array."""
    parts = mesh.size(axes)
    if len(pieces) == 1:
        return [jax.lax.psum_scatter(pieces[0], names(axes), scatter_dimension=dims[0], tiled=True)]
    # The split dim first: `psum_scatter` gives device i row i.
    rows = [
        jnp.moveaxis(_parted(piece, dim, parts), dim, 0).reshape(parts, -1)
        for piece, dim in zip(pieces, dims, strict=True)
    ]
    summed = jax.lax.psum_scatter(
        jnp.concatenate(rows, axis=1), names(axes), scatter_dimension=0, tiled=False
    )
    shapes = [
        (*piece.shape[:dim], piece.shape[dim] // parts, *piece.shape[dim + 1 :])
        for piece, dim in zip(pieces, dims, strict=True)
    ]
    return _cut_apart(summed, shapes)


def gather_all(pieces: Sequence[Array], dims: Sequence[int], axes: Axes) -> list[Array]:
    """Return the arrays whose shards along `dims` lie on the devices along the axes."""
    if len(pieces) == 1:
        return [jax.lax.all_gather(pieces[0], names(axes), axis=dims[0], tiled=True)]
    # Untiled: tiled, the flat buffers of the devices would follow each other.
    gathered = jax.lax.all_gather(_flat(pieces), names(axes), axis=0, tiled=False)
    results: list[Array] = []
    start = 0
    for piece, dim in zip(pieces, dims, strict=True):
        parts = gathered[:, start : start + piece.size].reshape(-1, *piece.shape)
        start += piece.size
        # Devices in front of the dim that they split: the reshape then joins shards in their order.
        side_by_side = jnp.moveaxis(parts, 0, dim)
        shape = list(piece.shape)
        shape[dim] *= len(parts)
        results.append(side_by_side.reshape(shape))
    return results


def _flat(pieces: Sequence[Array]) -> Array:
    return jnp.concatenate([piece.ravel() for piece in pieces])


def _parted(piece: Array, dim: int, parts: int) -> Array:
    shape = piece.shape
    return piece.reshape(*shape[:dim], parts, shape[dim] // parts, *shape[dim + 1 :])


def _cut_apart(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    parts: list[Array] = []
    start = 0
    for shape in shapes:
        size = math.prod(shape)
        parts.append(flat[start : start + size].reshape(shape))
        start += size
    return parts
