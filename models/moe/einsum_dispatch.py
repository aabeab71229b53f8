"""Tokens to experts and back by products with masks: shapes are fixed, so experts can be sharded.

A mask of (token, expert, slot) is 1 where the token has the slot; tokens beyond the capacity of
their expert have none, and get zero from it.

Cost: two products of seq x (experts x capacity) x dim, and the masks, for each sequence.

Source: Lepikhin et al. 2020, "GShard", section 3.2 (algorithm 2).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpipe.models.moe.router import Routed, slots


def dispatched(
    x: Float[Array, "batch seq dim"],
    routed: Routed,
    experts: Callable[[Array], Array],
    *,
    capacity: int,
) -> Float[Array, "batch seq dim"]:
    """Return the gated outputs of each token's experts; zero for a token that all of them dropped.

    `experts` maps (experts, batch, capacity, dim) to the same shape.

    >>> from jaxpipe.models.moe.router import route
    >>> from jaxpipe.models.moe.routing import Routing
    >>> x = jnp.ones((1, 3, 2))  # three equal tokens choose the same expert, which has two slots
    >>> routed = route(x, jnp.zeros((2, 2)), Routing(experts=2))
    >>> dispatched(x, routed, lambda rows: 2 * rows, capacity=2)[0, :, 0].tolist()
    [1.0, 1.0, 0.0]
    """
    num_experts = routed.probabilities.shape[-1]
    gates = routed.gates.astype(x.dtype)
    with jax.named_scope("router"):
        mask, weights = _masks(routed.experts, gates, num_experts, capacity)
    with jax.named_scope("dispatch"):
        rows = jnp.einsum("bsd,bsec->ebcd", x, mask)
    outputs = experts(rows)
    with jax.named_scope("combine"):
        return jnp.einsum("ebcd,bsec->bsd", outputs, weights)


# Keeps the numbers of experts for the backward, not the one-hot arrays.
@partial(jax.checkpoint, static_argnums=(2, 3))
def _masks(
    experts: Int[Array, "batch seq k"],
    gates: Float[Array, "batch seq k"],
    num_experts: int,
    capacity: int,
) -> tuple[Float[Array, "batch seq experts slots"], Float[Array, "batch seq experts slots"]]:
    """Return the mask of each token's slots, and the gates at the same places."""
    expert = jax.nn.one_hot(experts, num_experts, dtype=gates.dtype)
    # A slot beyond the capacity is outside of the one-hot range: its row is all zeros.
    slot = slots(experts, num_experts=num_experts)
    slot = jax.nn.one_hot(slot, capacity, dtype=gates.dtype)
    mask = jnp.einsum("bske,bskc->bsec", expert, slot)
    return mask, jnp.einsum("bske,bskc->bsec", expert * gates[..., None], slot)
