"""Context parallelism: the devices of a rank have a part of each sequence, of all its layers.

::

    a sequence in 2n pieces, n = 3     0   1   2   3   4   5
    device 0                           0                   5      an early piece and a late one:
    device 1                               1           4          causal attention is then equally
    device 2                                   2   3              much work for all

Embedding, layers and loss compute with the tokens of their device, attention with those of all
(`jaxpipe.models.kernels.ring_attention`). Parameters are those of all tokens: their gradients are
summed over the devices.

Activations arrive whole and in order, and leave so. Sequences may thus be n times as long as one
device has memory for, but for one activation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from jaxpipe.runtime.stage.mesh import CONTEXT, StageLayout
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.placed import Places, segment_positions


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a stage reads of a microbatch, (microbatch, seq, ...) each; None for what it does not.

    `x` are samples or activations; see `jaxpipe.runtime.stage.stage.Stage.apply`. `known` are the
    tokens that a bottleneck reads.
    """

    x: Any
    targets: Any = None
    offset: Any = None
    segments: Any = None
    known: Any = None


def in_parts(
    layout: StageLayout,
    function: Callable[[Parameters, Tokens, Places], Array],
    params: Parameters,
    tokens: Tokens,
) -> Array:
    """Return the activation (microbatch, seq, dim), or the sum, of a function of some tokens."""
    assert layout.mesh is not None, layout
    num_parts = layout.num_parts
    if tokens.segments is None:
        batch, length = tokens.x.shape[:2]
        positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    else:
        positions = segment_positions(tokens.segments)

    def of_device(params: Parameters, tokens: Tokens, positions: Array) -> Array:
        places = Places(
            positions=positions, segments=tokens.segments, axis=CONTEXT, num_parts=num_parts
        )
        result = function(params, tokens, places)
        return result if result.ndim else jax.lax.psum(result, CONTEXT)

    split = jax.tree.map(lambda x: layout.in_parts(zigzag(x, num_parts)), (tokens, positions))
    is_activation = tokens.targets is None
    every_part = PartitionSpec(None, CONTEXT)
    # Unchecked, since the checks would make copies of the weights, which residuals would hold.
    mapped = jax.shard_map(
        of_device,
        mesh=layout.mesh,
        in_specs=(PartitionSpec(), every_part, every_part),
        out_specs=every_part if is_activation else PartitionSpec(),
        axis_names={CONTEXT},
        check_vma=False,
    )(params, *split)
    return in_order(mapped, num_parts) if is_activation else mapped


def zigzag(x: Array, num_parts: int) -> Array:
    """Return the tokens (batch, seq, ...) part by part, each with an early and a late piece.

    >>> zigzag(jnp.arange(8)[None], 2).tolist()
    [[0, 1, 6, 7, 2, 3, 4, 5]]
    """
    pieces = x.reshape(x.shape[0], 2, num_parts, -1, *x.shape[2:])
    return jnp.stack([pieces[:, 0], pieces[:, 1, ::-1]], axis=2).reshape(x.shape)


def in_order(x: Array, num_parts: int) -> Array:
    """Return the inverse of `zigzag`.

    >>> in_order(zigzag(jnp.arange(8)[None], 2), 2).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    pieces = x.reshape(x.shape[0], num_parts, 2, -1, *x.shape[2:])
    return jnp.stack([pieces[:, :, 0], pieces[:, ::-1, 1]], axis=1).reshape(x.shape)
