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

from jaxpipe.models.moe.router import Routed

GroupedRows = Callable[[Float[Array, "rows dim"], Int[Array, " experts"]], Array]


def sorted_by_expert(
    x: Float[Array, "batch seq dim"], routed: Routed, experts: GroupedRows
) -> Float[Array, "batch seq dim"]:
    """Return the gated outputs of each token's experts.

    `experts` maps the rows of expert 0, then those of expert 1 and so on, and the number of each,
    to as many rows.
    """
    batch, seq, k = routed.experts.shape
    rows = x.reshape(-1, x.shape[-1])
    chosen = routed.experts.reshape(-1)
    # Stable: the order of the rows must not depend on the backend.
    order = jnp.argsort(chosen, stable=True)
    sizes = jnp.bincount(chosen, length=routed.probabilities.shape[-1]).astype(jnp.int32)
    outputs = experts(rows[order // k], sizes)
    # Gathered back, not added up: the sum of a token's outputs keeps the order of its choices.
    outputs = outputs[jnp.argsort(order)].reshape(batch, seq, k, -1)
    return jnp.einsum("bskd,bsk->bsd", outputs, routed.gates.astype(x.dtype))
