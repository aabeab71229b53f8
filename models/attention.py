"""Self-attention: blocked matrix products, or a fused kernel.

The product form of causal attention never computes most of what causality forbids: queries and keys
are cut into a few equal parts, and each part of the queries meets the keys up to its own end::

              keys                      S = sequence, 4 parts
            ┌───┬───┬───┬───┐
    queries │ ◣ │   │   │   │           forward:  a row of parts at a time
            ├───┼───┤   │   │           backward: a column of parts at a time, in which the
            │ ■ │ ◣ │   │   │                     gradients of keys and values are complete
            ├───┼───┼───┤   │
            │ ■ │ ■ │ ◣ │   │           ■ computed   ◣ computed, then masked   blank: never
            ├───┼───┼───┼───┤
            │ ■ │ ■ │ ■ │ ◣ │
            └───┴───┴───┴───┘

Without causality each part of the queries meets all keys; with a window, only keys that one of its
queries reads.

With segments, a query reads keys of its own segment alone: masked where they are computed.

Queries have one more dim than keys and values where several heads share a key and a value
(grouped-query attention): the products below have it or not, by their subscripts.

Its backward is its own: it keeps the output and one statistic per query and head, computes the
scores again from it without a second softmax, and computes them transposed, so that all products
but one read their operands in rows.

Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.1; the statistic and the
backward from it: Dao et al. 2022, "FlashAttention", section 3.1 and appendix B; shared keys:
Ainslie et al. 2023, "GQA", section 2.2; the window: Beltagy et al. 2020, "Longformer", section 3.1.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxpipe.models.gpt_config import Attention

MAX_PARTS = 4
"""Into how many parts a sequence is cut at most: of n parts (n + 1) / 2n is computed."""

MIN_PART = 128
"""The shortest part, in tokens: products of shorter ones are slower by more than they save."""

Heads = Float[Array, "batch heads seq width"]
Queries = Float[Array, "batch heads *group seq width"]


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


def self_attention(
    qkv: Float[Array, "batch seq 3 dim"], *, num_heads: int, form: Attention, causal: bool = True
) -> Float[Array, "tokens dim"]:
    """Multi-head attention; `causal`: each token attends to earlier tokens and itself alone.

    `qkv` are queries, keys and values, each head after head. The result is that of one sequence
    after the other; it carries the name "attention", for policies of `jax.checkpoint`.

    >>> qkv = jnp.zeros((1, 3, 3, 2)).at[:, :, 2].set(jnp.arange(6.0).reshape(1, 3, 2))
    >>> self_attention(qkv, num_heads=1, form=Attention.PRODUCT).tolist()
    [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    """
    batch, seq, _, dim = qkv.shape
    qkv = qkv.reshape(batch, seq, 3, num_heads, dim // num_heads)
    scores = Scores(causal=causal)
    if _chosen(form, qkv, scores) is Attention.FLASH:
        return _fused(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], scores)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    return _product(q, k, v, None, scores)


def grouped_attention(
    q: Float[Array, "batch seq heads width"],
    k: Float[Array, "batch seq kv_heads width"],
    v: Float[Array, "batch seq kv_heads width"],
    *,
    form: Attention,
    scores: Scores,
    segments: Int[Array, "batch seq"] | None = None,
) -> Float[Array, "tokens dim"]:
    """Attention in which equal groups of consecutive heads share a key and a value.

    With `segments`, each token reads those of its own segment alone. The result is that of
    `self_attention`, whose output and name it has.

    >>> q, k = jnp.zeros((1, 3, 2, 1)), jnp.zeros((1, 3, 1, 1))
    >>> v = jnp.arange(3.0).reshape(1, 3, 1, 1)
    >>> local = Scores(window=2)
    >>> grouped_attention(q, k, v, form=Attention.PRODUCT, scores=local).tolist()
    [[0.0, 0.0], [0.5, 0.5], [1.5, 1.5]]
    """
    # The fused kernel has no mask for segments: configurations refuse both.
    if segments is None and _chosen(form, q, scores) is Attention.FLASH:
        return _fused(q, k, v, scores)
    batch, seq, heads, width = q.shape
    kv_heads = k.shape[2]
    q, k, v = (each.transpose(0, 2, 1, 3) for each in (q, k, v))
    if kv_heads < heads:
        q = q.reshape(batch, kv_heads, heads // kv_heads, seq, width)
    return _product(q, k, v, segments, scores)


def parts(sequence: int) -> list[tuple[int, int]]:
    """Return the first token of each part and the one after its last.

    >>> parts(7), parts(300), parts(2048)[-1]
    ([(0, 7)], [(0, 150), (150, 300)], (1536, 2048))
    """
    # Rounded up twice: parts are as equal as can be, and at most MAX_PARTS.
    size = -(-sequence // max(1, min(MAX_PARTS, sequence // MIN_PART)))
    return [(begin, min(begin + size, sequence)) for begin in range(0, sequence, size)]


def _chosen(form: Attention, q: Array, scores: Scores) -> Attention:
    """Resolve AUTO: the fused kernel, if it supports the device, format, head width and scores."""
    if form is not Attention.AUTO:
        return form
    width = q.shape[-1]
    fused = q.dtype.itemsize == 2 and width % 8 == 0 and width <= 128 and not scores.softcap
    return Attention.FLASH if fused and jax.default_backend() == "gpu" else Attention.PRODUCT


def _fused(q: Array, k: Array, v: Array, scores: Scores) -> Float[Array, "tokens dim"]:
    assert not scores.softcap, "cuDNN's kernel bounds no scores: configurations refuse it"
    mixed = jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=scores.scale,
        is_causal=scores.causal,
        # jax counts the tokens before the query.
        local_window_size=(scores.window - 1, 0) if scores.window else None,
        implementation="cudnn",
    )
    return checkpoint_name(mixed.reshape(q.shape[0] * q.shape[1], -1), "attention")


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _product(
    q: Queries, k: Heads, v: Heads, segments: Array | None, scores: Scores
) -> Float[Array, "tokens dim"]:
    return _forward(q, k, v, segments, scores)[0]


def _forward(
    q: Queries, k: Heads, v: Heads, segments: Array | None, how: Scores
) -> tuple[Array, tuple[Array | None, ...]]:
    """Return the output, and what the backward needs: all operands, the output, the statistic."""
    mixed, statistics = [], []
    length = q.shape[-2]
    for begin, end in parts(length):
        first, last = _keys_of(begin, end, length, how)
        products = _dot("bhqd,bhkd->bhqk", q[..., begin:end, :], k[:, :, first:last])
        scores, _ = _capped(products * _scale(q, how), how)
        # Every query reads itself: no row is all -inf, so the peak is finite.
        if how.causal:
            reads = _reads(range(begin, end), range(first, last), how)
            scores = jnp.where(reads, scores, -jnp.inf)
        if segments is not None:
            same = _same(segments[:, begin:end], segments[:, first:last], like=scores)
            scores = jnp.where(same, scores, -jnp.inf)
        peak = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - peak)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        # Weights are at most 1, safe in float16. The output is divided: fewer divisions than for
        # weights, `width` of them per query.
        gathered = _dot("bhqk,bhkd->bhqd", weights.astype(v.dtype), v[:, :, first:last])
        mixed.append((gathered / total).astype(v.dtype))
        statistics.append((peak + jnp.log(total))[..., 0])
    # Both under one name: a policy that keeps the output must keep the statistic with it.
    output = checkpoint_name(_merge(jnp.concatenate(mixed, axis=-2)), "attention")
    statistic = checkpoint_name(jnp.concatenate(statistics, axis=-1), "attention")
    return output, (q, k, v, segments, output, statistic)


def _backward(
    how: Scores, residuals: tuple[Any, ...], of_output: Array
) -> tuple[Queries, Heads, Heads, None]:
    q, k, v, segments, output, statistic = residuals
    of_mixed = _split(of_output, q)
    # The sum over keys of dP * P equals dO . O (FlashAttention, appendix B): no second pass.
    dots = jnp.sum((of_mixed * _split(output, q)).astype(jnp.float32), axis=-1)
    # Accumulated in float32: parts of the keys add to the same queries.
    of_q = jnp.zeros(q.shape, jnp.float32)
    of_k, of_v = [], []
    length = q.shape[-2]
    for begin, end in parts(length):
        first, last = _queries_of(begin, end, length, how)
        keys, later = k[:, :, begin:end], q[..., first:last, :]
        of_later = of_mixed[..., first:last, :]
        products = _dot("bhkd,bhqd->bhkq", keys, later) * _scale(q, how)
        scores, slope = _capped(products, how)
        if how.causal:
            reads = _reads(range(first, last), range(begin, end), how)
            scores = jnp.where(reads.T, scores, -jnp.inf)
        if segments is not None:
            same = _same(segments[:, begin:end], segments[:, first:last], like=scores)
            scores = jnp.where(same, scores, -jnp.inf)
        # exp(score - logsumexp) is the softmax: no maximum and no sum again.
        weights = jnp.exp(scores - statistic[..., None, first:last])
        of_v.append(_dot("bhkq,bhqd->bhkd", weights.astype(v.dtype), of_later))
        of_weights = _dot("bhkd,bhqd->bhkq", v[:, :, begin:end], of_later)
        # The derivative of a softmax: P * (dP - sum of dP * P).
        of_scores = weights * (of_weights - dots[..., None, first:last])
        of_scores = of_scores if slope is None else of_scores * slope
        of_scores = (of_scores * _scale(q, how)).astype(q.dtype)
        of_k.append(_dot("bhkq,bhqd->bhkd", of_scores, later))
        of_q = of_q.at[..., first:last, :].add(_dot("bhkq,bhkd->bhqd", of_scores, keys))
    gradients = of_q, jnp.concatenate(of_k, axis=2), jnp.concatenate(of_v, axis=2)
    of_q, of_k, of_v = (gradient.astype(q.dtype) for gradient in gradients)
    return of_q, of_k, of_v, None


_product.defvjp(_forward, _backward)


def _dot(subscripts: str, a: Array, b: Array) -> Array:
    """Multiply with float32 accumulation; queries and scores of groups have one more dim.

    Subscripts name the dims of operands without groups. A result without queries is a sum over
    its group.
    """
    if max(a.ndim, b.ndim) > 4:  # batch, heads, group, and two more
        terms = subscripts.replace("->", ",").split(",")
        left, right, result = (t.replace("bh", "bhg") if "q" in t else t for t in terms)
        subscripts = f"{left},{right}->{result}"
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _scale(q: Queries, how: Scores) -> float:
    return q.shape[-1] ** -0.5 if how.scale is None else how.scale


def _capped(scores: Array, how: Scores) -> tuple[Array, Array | None]:
    """Return the scores within the soft bound, and its slope; None where it is 1."""
    if not how.softcap:
        return scores, None
    bounded = jnp.tanh(scores / how.softcap)
    return how.softcap * bounded, 1 - bounded**2


def _keys_of(begin: int, end: int, length: int, how: Scores) -> tuple[int, int]:
    """Return the first key that a part of the queries reads, and the one after the last."""
    first = max(0, begin - how.window + 1) if how.window else 0
    return first, end if how.causal else length


def _queries_of(begin: int, end: int, length: int, how: Scores) -> tuple[int, int]:
    """Return the first query that reads a part of the keys, and the one after the last."""
    last = min(length, end - 1 + how.window) if how.window else length
    return begin if how.causal else 0, last


def _reads(queries: range, keys: range, how: Scores) -> Array:
    """Return the mask of causal attention, (query, key)."""
    query = jnp.arange(queries.start, queries.stop)[:, None]
    key = jnp.arange(keys.start, keys.stop)
    return (query >= key) & (query - key < how.window) if how.window else query >= key


def _same(rows: Array, columns: Array, *, like: Array) -> Array:
    """Return where a row and a column of scores are of the same segment."""
    same = rows[:, :, None] == columns[:, None, :]
    return same.reshape(same.shape[0], *[1] * (like.ndim - 3), *same.shape[1:])


def _merge(x: Queries) -> Float[Array, "tokens dim"]:
    return jnp.moveaxis(x, -2, 1).reshape(x.shape[0] * x.shape[-2], -1)


def _split(x: Float[Array, "tokens dim"], like: Queries) -> Queries:
    *front, seq, width = like.shape
    return jnp.moveaxis(x.reshape(front[0], seq, *front[1:], width), 1, -2)
