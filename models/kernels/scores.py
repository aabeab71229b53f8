"""Attention of some queries to some keys, forward and backward: the pieces of every product form.

The forward of a piece is not divided by its softmax's sum yet, so that the pieces of one query can
be added. The backward computes scores again from the logarithm of that sum, without a second
softmax, and computes them transposed, so that all products but one read their operands in rows.

Queries have one more dim than keys and values where several heads share a key and a value
(grouped-query attention): the products have it or not, by their subscripts.

Source: Dao et al. 2022, "FlashAttention", section 3.1 and appendix B; Ainslie et al. 2023, "GQA",
section 2.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpipe.models.kernels.accumulation import accumulation_dtype

Heads = Float[Array, "batch heads keys width"]
Queries = Float[Array, "batch heads *group queries width"]
Statistic = Float[Array, "batch heads *group queries"]
Masks = Sequence[Bool[Array, "..."]]

_LOWEST = -1e30
"""The peak of a query that reads none of the keys: finite, so that its weights are 0, not NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How a query scores keys, and which it reads.

    Args:
        scale: factor of the products of queries and keys; by default 1 over the root of the width.
        causal: whether a token reads earlier tokens and itself alone.
        window: how many tokens it reads at most, itself and the ones before it; 0 for all. Causal
            attention only.
        softcap: bound c of the scores, as c tanh(score / c); 0 for none.
    """

    scale: float | None = None
    causal: bool = True
    window: int = 0
    softcap: float = 0.0

    def __post_init__(self) -> None:
        assert self.causal or not self.window, self

    def reads(
        self, queries: Int[Array, " queries"], keys: Int[Array, " keys"]
    ) -> Bool[Array, "queries keys"]:
        """Return which keys causal attention reads, given the places of both in the sequence."""
        query, key = queries[:, None], keys[None, :]
        return (query >= key) & (query - key < self.window) if self.window else query >= key


class AttentionPiece(NamedTuple):
    """Attention to some of the keys, in float32.

    Args:
        peak: the largest score of each query.
        total: the sum of the exponentials of scores, less the peak.
        mixed: the values, weighted by these exponentials.
    """

    peak: Float[Array, "batch heads *group queries 1"]
    total: Float[Array, "batch heads *group queries 1"]
    mixed: Float[Array, "batch heads *group queries width"]

    def output(self) -> Float[Array, "batch heads *group queries width"]:
        """Return the values, weighted by the softmax."""
        # The output is divided: fewer divisions than for weights, `width` of them per query.
        return self.mixed / self.total

    def joined(self, other: "AttentionPiece") -> "AttentionPiece":
        """Return the attention to the keys of both."""
        peak = jnp.maximum(self.peak, other.peak)
        mine, theirs = jnp.exp(self.peak - peak), jnp.exp(other.peak - peak)
        total = self.total * mine + other.total * theirs
        return AttentionPiece(peak, total, self.mixed * mine + other.mixed * theirs)

    def statistic(self) -> Statistic:
        """Return the logarithm of the sum of the exponentials of scores."""
        return (self.peak + jnp.log(self.total))[..., 0]


def attend(q: Queries, k: Heads, v: Heads, how: Scores, masks: Masks) -> AttentionPiece:
    """Return the attention of queries to keys that all `masks` (..., queries, keys) allow."""
    products = _dot("bhqd,bhkd->bhqk", q, k) * _scale(q, how)
    scores = _masked(_capped(products, how)[0], masks)
    peak = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), _LOWEST)
    weights = jnp.exp(scores - peak)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    # Weights are at most 1, safe in float16.
    return AttentionPiece(peak, total, _dot("bhqk,bhkd->bhqd", weights.astype(v.dtype), v))


def nothing_attended(q: Queries) -> AttentionPiece:
    """Return the attention of queries to no key."""
    wide = accumulation_dtype(q.dtype)
    zeros = jnp.zeros((*q.shape[:-1], 1), wide)
    return AttentionPiece(zeros + _LOWEST, zeros, jnp.zeros(q.shape, wide))


class Differentiated(NamedTuple):
    """What the backward knows of queries.

    Args:
        q: the queries.
        statistic: the logarithm of the sum of the exponentials of their scores, over all keys.
        of_mixed: the gradient of their output.
        dots: its product with the output, dO . O, which equals the sum over keys of dP * P.
    """

    q: Queries
    statistic: Statistic
    of_mixed: Queries
    dots: Statistic

    def part(self, begin: int, end: int) -> "Differentiated":
        """Return some of the queries."""
        return Differentiated(
            self.q[..., begin:end, :],
            self.statistic[..., begin:end],
            self.of_mixed[..., begin:end, :],
            self.dots[..., begin:end],
        )


def differentiated(
    q: Queries,
    statistic: Statistic,
    output: Float[Array, "tokens dim"],
    of_output: Float[Array, "tokens dim"],
) -> Differentiated:
    """Return what the backward knows of queries, given their output and its gradient."""
    of_mixed = _split(of_output, q)
    products = of_mixed * _split(output, q)
    dots = jnp.sum(products.astype(accumulation_dtype(q.dtype)), axis=-1)
    return Differentiated(q, statistic, of_mixed, dots)


def attend_backward(
    queries: Differentiated, k: Heads, v: Heads, how: Scores, masks: Masks
) -> tuple[Array, Array, Array]:
    """Return the gradients of queries, keys and values in float32, given the masks of `attend`."""
    q, statistic, of_mixed, dots = queries
    products = _dot("bhkd,bhqd->bhkq", k, q) * _scale(q, how)
    scores, slope = _capped(products, how)
    scores = _masked(scores, [jnp.swapaxes(mask, -1, -2) for mask in masks])
    # exp(score - logsumexp) is the softmax: no maximum and no sum again.
    weights = jnp.exp(scores - statistic[..., None, :])
    of_v = _dot("bhkq,bhqd->bhkd", weights.astype(v.dtype), of_mixed)
    of_weights = _dot("bhkd,bhqd->bhkq", v, of_mixed)
    # The derivative of a softmax: P * (dP - sum of dP * P).
    of_scores = weights * (of_weights - dots[..., None, :])
    of_scores = of_scores if slope is None else of_scores * slope
    of_scores = (of_scores * _scale(q, how)).astype(q.dtype)
    of_k = _dot("bhkq,bhqd->bhkd", of_scores, q)
    return _dot("bhkq,bhkd->bhqd", of_scores, k), of_k, of_v


def same_segment(
    queries: Int[Array, "batch queries"], keys: Int[Array, "batch keys"], *, num_dims: int
) -> Bool[Array, "batch *ones queries keys"]:
    """Return the mask of scores of `num_dims` where a query and a key are of one segment."""
    same = queries[:, :, None] == keys[:, None, :]
    return same.reshape(same.shape[0], *[1] * (num_dims - 3), *same.shape[1:])


def segment_lengths(
    segments: Int[Array, "batch tokens"], sequences: Int[Array, "batch seq"]
) -> Int[Array, "batch tokens"]:
    """Return the number of tokens in the segment of each token, in `sequences` of segments.

    >>> packed = jnp.array([[0, 0, 0, 1, 1, 2]])
    >>> segment_lengths(packed, packed).tolist()
    [[3, 3, 3, 2, 2, 1]]
    """

    def of_row(segments: Array, sequences: Array) -> Array:
        ordered = jnp.sort(sequences)
        ends = jnp.searchsorted(ordered, segments, side="right")
        return ends - jnp.searchsorted(ordered, segments, side="left")

    return jax.vmap(of_row)(segments, sequences)


def by_head(
    q: Float[Array, "batch seq q_heads width"],
    k: Float[Array, "batch seq heads width"],
    v: Float[Array, "batch seq heads width"],
) -> tuple[Queries, Heads, Heads]:
    """Return the sequence of each head; queries in a group for each key that several share."""
    batch, seq, q_heads, width = q.shape
    heads = k.shape[2]
    q, k, v = (array.transpose(0, 2, 1, 3) for array in (q, k, v))
    if heads < q_heads:
        q = q.reshape(batch, heads, q_heads // heads, seq, width)
    return q, k, v


def merged(x: Queries) -> Float[Array, "tokens dim"]:
    """Return the heads of each token next to each other, one sequence after the other."""
    return jnp.moveaxis(x, -2, 1).reshape(x.shape[0] * x.shape[-2], -1)


def _split(x: Float[Array, "tokens dim"], like: Queries) -> Queries:
    """Return the inverse of `merged`."""
    *front, seq, width = like.shape
    return jnp.moveaxis(x.reshape(front[0], seq, *front[1:], width), 1, -2)


def _dot(subscripts: str, a: Array, b: Array) -> Array:
    """Multiply with float32 accumulation; queries and scores of groups have one more dim.

    Subscripts name the dims of operands without groups. A result without queries is a sum over
    its group.
    """
    if max(a.ndim, b.ndim) > 4:  # batch, heads, group, and two more
        terms = subscripts.replace("->", ",").split(",")
        left, right, result = (t.replace("bh", "bhg") if "q" in t else t for t in terms)
        subscripts = f"{left},{right}->{result}"
    return jnp.einsum(subscripts, a, b, preferred_element_type=accumulation_dtype(a.dtype))


def _scale(q: Queries, how: Scores) -> float:
    return q.shape[-1] ** -0.5 if how.scale is None else how.scale


def _capped(scores: Array, how: Scores) -> tuple[Array, Array | None]:
    """Return the scores within the soft bound, and its slope; None where it is 1."""
    if not how.softcap:
        return scores, None
    bounded = jnp.tanh(scores / how.softcap)
    return how.softcap * bounded, 1 - bounded**2


def _masked(scores: Array, masks: Masks) -> Array:
    for mask in masks:
        scores = jnp.where(mask, scores, -jnp.inf)
    return scores
