"""Auxiliary losses of a router: load balance, and the z-loss of its logits.

Both are means over the tokens of a batch. The first is a product of two such means, so that it is
not linear in the batch: counts are summed over all sequences of the batch first. In a pipeline that
batch is a microbatch.

Source: Fedus et al. 2021, "Switch Transformers", equations 4 to 6; of several choices the first
counts, as in Lepikhin et al. 2020, "GShard", algorithm 1. Zoph et al. 2022, "ST-MoE", equation 5.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpipe.models.moe.router import Routed
from jaxpipe.models.moe.routing import Routing


@partial(jax.checkpoint, static_argnums=1)
def auxiliary_loss(routed: Routed, routing: Routing) -> Float[Array, ""]:
    """Return the weighted sum of the losses whose weight is not 0, as a mean over tokens."""
    loss = jnp.float32(0)
    if routing.balance_loss:
        loss += routing.balance_loss * load_balance_loss(routed)
    if routing.z_loss:
        loss += routing.z_loss * z_loss(routed)
    return loss


def load_balance_loss(routed: Routed) -> Float[Array, ""]:
    """Return `experts` times the sum over experts of their token fraction times mean probability.

    It is 1 where all experts get as many tokens with as much probability, and at most `experts`.

    >>> from jaxpipe.models.moe.router import route
    >>> x, kernel = jnp.array([[[1.0], [-1.0]]]), jnp.array([[9.0, -9.0]])
    >>> float(load_balance_loss(route(x, kernel, Routing(experts=2))))
    1.0
    """
    num_experts = routed.probabilities.shape[-1]
    # The fraction has no gradient: it is a count, before capacity drops any token.
    first = jax.nn.one_hot(routed.experts[..., 0], num_experts, dtype=jnp.float32)
    fractions = first.mean(axis=(0, 1))
    return num_experts * jnp.vdot(fractions, routed.probabilities.mean(axis=(0, 1)))


def z_loss(routed: Routed) -> Float[Array, ""]:
    """Return the mean square of the logsumexp of a token's logits: small logits round less."""
    return jnp.square(jax.nn.logsumexp(routed.logits, axis=-1)).mean()
