"""Tokens sorted by their expert, and products over groups of rows: no slots, no dropped tokens.

::

    token    0  1  2  3         sorted    1  3 │ 0 │ 2        rows of expert 0, 1, 2
    expert   1  0  2  0         groups    2    │ 1 │ 1        group sizes, known at run time

It computes as many rows as tokens have choices, while masks compute every slot. A group may be of
any size, so that experts cannot be divided evenly over devices: it is for one device.

Source: Gale et al. 2022, "MegaBlocks", section 4 (dropless mixtures, as grouped products).
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.moe.router import Routed

GroupedRows = Callable[[Float[Array, "rows dim"], Int[Array, " experts"]], Array]


def sorted_by_expert(
    x: Float[Array, "batch seq dim"], routed: Routed, experts: GroupedRows
) -> Float[Array, "batch seq dim"]:
    """Return the gated outputs of each token's experts.

    `experts` maps the rows of expert 0, then those of expert 1 and so on, and the number of each,
    to as many rows.
    """
    k, num_experts = routed.experts.shape[-1], routed.probabilities.shape[-1]
    rows = x.reshape(-1, x.shape[-1])
    chosen = routed.experts.reshape(-1)
    # Stable: the order of a token's own choices must not depend on the backend.
    order = jnp.argsort(chosen, stable=True)
    sizes = jnp.bincount(chosen, length=num_experts).astype(jnp.int32)
    token = order // k
    outputs = experts(rows[token], sizes)
    gates = routed.gates.reshape(-1)[order, None].astype(x.dtype)
    return jnp.zeros_like(rows).at[token].add(gates * outputs).reshape(x.shape)
