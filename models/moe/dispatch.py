"""Tokens to experts and back: by products with masks, or sorted by their expert.

`dispatched` multiplies with a mask of (token, expert, slot), which is 1 where the token has the
slot; tokens beyond the capacity of their expert have none, and get zero from it. Shapes are fixed,
so experts can be sharded. Cost: two products of seq x (experts x capacity) x dim, and the masks,
for each sequence.

`sorted_by_expert` has products over groups of rows, no slots, and drops no token::

    token    0  1  2  3         sorted    1  3 │ 0 │ 2        rows of expert 0, 1, 2
    expert   1  0  2  0         groups    2    │ 1 │ 1        group sizes, known at run time

It computes as many rows as tokens have choices, while masks compute every slot. A group may be of
any size, so that experts cannot be divided evenly over devices: it is for one device.

Source: Lepikhin et al. 2020, "GShard", section 3.2 (algorithm 2); Gale et al. 2022, "MegaBlocks",
section 4 (dropless mixtures, as grouped products).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpipe.models.moe.router import Routed, slots

GroupedRows = Callable[[Float[Array, "rows dim"], Int[Array, " experts"]], Array]


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


def sorted_by_expert(
    x: Float[Array, "batch seq dim"], routed: Routed, experts: GroupedRows
) -> Float[Array, "batch seq dim"]:
    """Return the gated outputs of each token's experts.

    `experts` maps the rows of expert 0, then those of expert 1 and so on, and the number of each,
    to as many rows.
    """
    batch, seq, k = routed.experts.shape
    rows = x.reshape(-1, x.shape[-1])
    expert_numbers = routed.experts.reshape(-1)
    # Stable: the order of the rows must not depend on the backend.
    order = jnp.argsort(expert_numbers, stable=True)
    sizes = jnp.bincount(expert_numbers, length=routed.probabilities.shape[-1]).astype(jnp.int32)
    outputs = experts(rows[order // k], sizes)
    # Gathered back, not added up: the sum of a token's outputs keeps the order of its choices.
    outputs = outputs[jnp.argsort(order)].reshape(batch, seq, k, -1)
    return jnp.einsum("bskd,bsk->bsd", outputs, routed.gates.astype(x.dtype))


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
