"""Attention of a text that grows: the keys and values of earlier tokens are kept, not recomputed.

Prompts of a batch differ in length; each is followed by what is generated::

    cache, one row for each prompt          position
    ┌──────────────────────────┐
    │ k k k k k k · · · · · ·  │            6     next token of row 0 is written here
    │ k k k x x x · · · · · ·  │            3     x: of padding; overwritten before they are read
    └──────────────────────────┘
      length of the prompts     room, known when the program is compiled

`Prefill` is the attention of the prompts, `Decode` that of one more token of each row. A layer
calls either in place of its own attention; a call is traced once, in the order of the layers.
"""

from typing import Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.kernels.attention import grouped_attention
from jaxpipe.models.kernels.scores import Scores

Heads: TypeAlias = Float[Array, "batch seq heads width"]
SharedHeads: TypeAlias = Float[Array, "batch seq kv_heads width"]

Cache: TypeAlias = Float[Array, "layers 2 batch room kv_heads width"]
"""Keys, then values, of each attention layer."""


@runtime_checkable
class CachedAttention(Protocol):
    """What a layer calls in place of its own attention."""

    @property
    def positions(self) -> Int[Array, "batch seq"] | None:
        """The position of each token; None where they are those in the row."""
        ...

    @property
    def lengths(self) -> int | Int[Array, "batch seq"]:
        """The length of the text of each token [tokens], so far; one number if all are equal."""
        ...

    def __call__(
        self, q: Heads, k: SharedHeads, v: SharedHeads, /, *, form: Attention, scores: Scores
    ) -> Float[Array, "tokens dim"]:
        """Return the attention output of each token, one row after the other."""
        ...


class Prefill:
    """The attention of prompts of some lengths; collects keys and values in `kept`, by layer."""

    positions = None

    def __init__(self, lengths: Int[Array, " batch"]) -> None:
        self.lengths = lengths[:, None]
        self.kept: list[Float[Array, "2 batch seq kv_heads width"]] = []

    def __call__(
        self, q: Heads, k: SharedHeads, v: SharedHeads, /, *, form: Attention, scores: Scores
    ) -> Float[Array, "tokens dim"]:
        """Return the attention output of each token."""
        self.kept.append(jnp.stack((k, v)))
        return grouped_attention(q, k, v, form=form, scores=scores)


class Decode:
    """The attention of one token of each row, at `starts`, to itself and those in the cache.

    `cache` has the keys and values of the token as well, once a layer has been called.
    """

    def __init__(self, cache: Cache, starts: Int[Array, " batch"], *, layer: Array | int) -> None:
        self.cache = cache
        self.positions = starts[:, None]
        self.lengths = self.positions + 1
        self._starts = starts
        self._layer = layer

    def __call__(
        self, q: Heads, k: SharedHeads, v: SharedHeads, /, *, form: Attention, scores: Scores
    ) -> Float[Array, "tokens dim"]:
        """Return the attention output of each token."""
        del form  # one query for each row: there is nothing to cut into parts
        assert scores.causal, scores
        layer, rows = self._layer, jnp.arange(q.shape[0])
        for position, new in enumerate((k, v)):
            self.cache = self.cache.at[layer, position, rows, self._starts].set(new[:, 0])
        self._layer = layer + 1
        keys, values = self.cache[layer]
        return _attend(q[:, 0], keys, values, self._starts, scores)


def _attend(
    q: Float[Array, "batch heads width"],
    keys: SharedHeads,
    values: SharedHeads,
    starts: Int[Array, " batch"],
    how: Scores,
) -> Float[Array, "batch dim"]:
    """Return the attention output of one query for each row."""
    batch, heads, width = q.shape
    kv_heads = keys.shape[2]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, width)
    scale = width**-0.5 if how.scale is None else how.scale
    products = jnp.einsum("bhgw,bshw->bhgs", grouped, keys, preferred_element_type=jnp.float32)
    scores = products * scale
    if how.softcap:
        scores = how.softcap * jnp.tanh(scores / how.softcap)
    behind = starts[:, None] - jnp.arange(keys.shape[1])  # how far each key is behind its query
    reads = (behind >= 0) & (behind < how.window) if how.window else behind >= 0
    weights = jax.nn.softmax(jnp.where(reads[:, None, None], scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum(
        "bhgs,bshw->bhgw", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return mixed.astype(values.dtype).reshape(batch, heads * width)
