"""The attention of samples that are several documents: a token reads its own document alone.

::

    segments    0 0 0 1 1 2          keys  0 1 2 3 4 5
    positions   0 1 2 0 1 0     query 0    ■
                                      1    ■ ■
                                      2    ■ ■ ■
                                      3          ■
                                      4          ■ ■
                                      5              ■

A layer calls it in place of its own attention, as that of `jaxpipe.models.cached_attention`.

Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", section 3.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpipe.models.attention import grouped_attention
from jaxpipe.models.cached_attention import Heads, SharedHeads
from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.scores import Scores


def segment_positions(segments: Int[Array, "batch seq"]) -> Int[Array, "batch seq"]:
    """Return the position of each token in its own segment.

    Segments are numbered in the order of the tokens.

    >>> segment_positions(jnp.array([[0, 0, 0, 1, 1, 2]])).tolist()
    [[0, 1, 2, 0, 1, 0]]
    """
    places = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    is_first = jnp.diff(segments, axis=1, prepend=-1) != 0
    begins = jax.lax.cummax(jnp.where(is_first, places, 0), axis=1)
    return places - begins


class PackedAttention:
    """Attention within segments; positions restart in each."""

    def __init__(self, segments: Int[Array, "batch seq"]) -> None:
        self.segments = segments
        self.positions = segment_positions(segments)

    def __call__(
        self, q: Heads, k: SharedHeads, v: SharedHeads, /, *, form: Attention, scores: Scores
    ) -> Float[Array, "tokens dim"]:
        """Return the attention output of each token."""
        return grouped_attention(q, k, v, form=form, scores=scores, segments=self.segments)
