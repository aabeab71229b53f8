"""The router: which experts a token takes, with which gates, in which slots, and its losses.

Slots are given out in the order of the sequence, first choices before second ones::

    token          0    1    2    3          expert a, capacity 2:   slot 0: token 0
    first choice   a    a    b    a                                  slot 1: token 1
    second choice  b    b    a    b          dropped: token 3's first, and token 2's second choice

Auxiliary losses are means over the tokens of a batch. Load balance is a product of two such means,
so that it is not linear in the batch: counts are summed over all sequences of the batch first. In a
pipeline that batch is a microbatch.

Source: Fedus et al. 2021, "Switch Transformers", section 2.1 and equations 4 to 6; Lepikhin et al.
2020, "GShard", algorithm 1, without its random dispatch of second choices: of several choices the
first counts. Zoph et al. 2022, "ST-MoE", equation 5 (z-loss).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.moe.routing import Routing


class Routed(NamedTuple):
    """The choice of each token, best expert first; everything is float32 or int32.

    `logits` and `probabilities` are over all experts, `experts` and `gates` those that are chosen.
    """

    logits: Float[Array, "batch seq experts"]
    probabilities: Float[Array, "batch seq experts"]
    experts: Int[Array, "batch seq k"]
    gates: Float[Array, "batch seq k"]


# Keeps its arguments for the backward, and nothing of what it computes.
@partial(jax.checkpoint, static_argnums=2)
def route(
    x: Float[Array, "batch seq dim"], kernel: Float[Array, "dim experts"], routing: Routing
) -> Routed:
    """Choose the experts of each token; of equal ones, the lowest number.

    In float32, whatever the format of `x`: in 16 bits, rounding would often change the choice.

    >>> x, kernel = jnp.array([[[1.0, 0.0], [0.0, 1.0]]]), jnp.array([[0.0, 2.0], [1.0, 0.0]])
    >>> route(x, kernel, Routing(experts=2)).experts[..., 0].tolist()
    [[1, 0]]
    """
    wide = accumulation_dtype(x.dtype)
    logits = jnp.einsum(
        "bsd,de->bse",
        x.astype(wide),
        kernel.astype(wide),
        precision=jax.lax.Precision.HIGHEST,
    )
    probabilities = jax.nn.softmax(logits, axis=-1)
    gates, experts = jax.lax.top_k(probabilities, routing.experts_per_token)
    if routing.normalised_gates:
        gates = gates / gates.sum(axis=-1, keepdims=True)
    return Routed(logits, probabilities, experts, gates)


def slots(experts: Int[Array, "batch seq k"], *, num_experts: int) -> Int[Array, "batch seq k"]:
    """Return the number of the slot, counted from 0, of each choice; a full expert has no more.

    >>> slots(jnp.array([[[0], [0], [1], [0]]]), num_experts=2)[..., 0].tolist()
    [[0, 1, 0, 2]]
    """
    batch, seq, k = experts.shape
    one_hot = jax.nn.one_hot(experts, num_experts, dtype=jnp.int32)
    # All first choices, then all second ones: a first choice never gives way to a second.
    ordered = one_hot.swapaxes(1, 2).reshape(batch, k * seq, num_experts)
    earlier = jnp.cumsum(ordered, axis=1) - ordered
    position = (earlier * ordered).sum(axis=-1)
    return position.reshape(batch, k, seq).swapaxes(1, 2)


@partial(jax.checkpoint, static_argnums=1)
def auxiliary_loss(routed: Routed, routing: Routing) -> Float[Array, ""]:
    """Return the weighted sum of the losses whose weight is not 0, as a mean over tokens."""
    loss = jnp.zeros((), routed.logits.dtype)
    if routing.balance_loss:
        loss += routing.balance_loss * load_balance_loss(routed)
    if routing.z_loss:
        loss += routing.z_loss * z_loss(routed)
    return loss


def load_balance_loss(routed: Routed) -> Float[Array, ""]:
    """Return `experts` times the sum over experts of their token fraction times mean probability.

    It is 1 where all experts get as many tokens with as much probability, and at most `experts`.

    >>> x, kernel = jnp.array([[[1.0], [-1.0]]]), jnp.array([[9.0, -9.0]])
    >>> float(load_balance_loss(route(x, kernel, Routing(experts=2))))
    1.0
    """
    num_experts = routed.probabilities.shape[-1]
    # The fraction has no gradient: it is a count, before capacity drops any token.
    first = jax.nn.one_hot(routed.experts[..., 0], num_experts, dtype=routed.logits.dtype)
    fractions = first.mean(axis=(0, 1))
    return num_experts * jnp.vdot(fractions, routed.probabilities.mean(axis=(0, 1)))


def z_loss(routed: Routed) -> Float[Array, ""]:
    """Return the mean square of the logsumexp of a token's logits: small logits round less."""
    return jnp.square(jax.nn.logsumexp(routed.logits, axis=-1)).mean()
