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

Without causality each part of the queries meets all keys.

Its backward is its own: it keeps the output and one statistic per query and head, computes the
scores again from it without a second softmax, and computes them transposed, so that all products
but one read their operands in rows.

Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.1; the statistic and the
backward from it: Dao et al. 2022, "FlashAttention", section 3.1 and appendix B.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxpipe.models.gpt_config import Attention

MAX_PARTS = 4
"""Into how many parts a sequence is cut at most: of n parts (n + 1) / 2n is computed."""

MIN_PART = 128
"""The shortest part, in tokens: products of shorter ones are slower by more than they save."""

Heads = Float[Array, "batch heads seq width"]
Statistics = Float[Array, "batch heads seq"]


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
    if _chosen(form, qkv) is Attention.FLASH:
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")
        return checkpoint_name(mixed.reshape(batch * seq, -1), "attention")
    return _product(*qkv.transpose(2, 0, 3, 1, 4), causal)


def parts(sequence: int) -> list[tuple[int, int]]:
    """Return the first token of each part and the one after its last.

    >>> parts(7), parts(300), parts(2048)[-1]
    ([(0, 7)], [(0, 150), (150, 300)], (1536, 2048))
    """
    # Rounded up twice: parts are as equal as can be, and at most MAX_PARTS.
    size = -(-sequence // max(1, min(MAX_PARTS, sequence // MIN_PART)))
    return [(begin, min(begin + size, sequence)) for begin in range(0, sequence, size)]


def _chosen(form: Attention, qkv: Array) -> Attention:
    """Resolve AUTO: the fused kernel, if it supports the device, format and head width."""
    if form is not Attention.AUTO:
        return form
    width = qkv.shape[-1]
    fused = qkv.dtype.itemsize == 2 and width % 8 == 0 and width <= 128
    return Attention.FLASH if fused and jax.default_backend() == "gpu" else Attention.PRODUCT


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _product(q: Heads, k: Heads, v: Heads, causal: bool) -> Float[Array, "tokens dim"]:
    return _forward(q, k, v, causal)[0]


def _forward(q: Heads, k: Heads, v: Heads, causal: bool) -> tuple[Array, tuple[Array, ...]]:
    """Return the output, and what the backward needs: all operands, the output, the statistic."""
    mixed, statistics = [], []
    for begin, end in parts(q.shape[2]):
        last = end if causal else q.shape[2]
        scores = _dot("bhqd,bhkd->bhqk", q[:, :, begin:end], k[:, :, :last]) * _scale(q)
        # Every query reads itself: no row is all -inf, so the peak is finite.
        if causal:
            scores = jnp.where(_reads(begin, end)[:, :end], scores, -jnp.inf)
        peak = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - peak)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        # Weights are at most 1, safe in float16. The output is divided: fewer divisions than for
        # weights, `width` of them per query.
        gathered = _dot("bhqk,bhkd->bhqd", weights.astype(v.dtype), v[:, :, :last])
        mixed.append((gathered / total).astype(v.dtype))
        statistics.append((peak + jnp.log(total))[..., 0])
    # Both under one name: a policy that keeps the output must keep the statistic with it.
    output = checkpoint_name(_merge(jnp.concatenate(mixed, axis=2)), "attention")
    statistic = checkpoint_name(jnp.concatenate(statistics, axis=2), "attention")
    return output, (q, k, v, output, statistic)


def _backward(
    causal: bool, residuals: tuple[Array, ...], of_output: Array
) -> tuple[Heads, Heads, Heads]:
    q, k, v, output, statistic = residuals
    of_mixed = _split(of_output, q)
    # The sum over keys of dP * P equals dO . O (FlashAttention, appendix B): no second pass.
    dots = jnp.sum((of_mixed * _split(output, q)).astype(jnp.float32), axis=-1)
    # Accumulated in float32: parts of the keys add to the same queries.
    of_q = jnp.zeros(q.shape, jnp.float32)
    of_k, of_v = [], []
    for begin, end in parts(q.shape[2]):
        first = begin if causal else 0
        keys, later, of_later = k[:, :, begin:end], q[:, :, first:], of_mixed[:, :, first:]
        scores = _dot("bhkd,bhqd->bhkq", keys, later) * _scale(q)
        if causal:
            scores = jnp.where(_reads(begin, q.shape[2])[:, begin:end].T, scores, -jnp.inf)
        # exp(score - logsumexp) is the softmax: no maximum and no sum again.
        weights = jnp.exp(scores - statistic[:, :, None, first:])
        of_v.append(_dot("bhkq,bhqd->bhkd", weights.astype(v.dtype), of_later))
        of_weights = _dot("bhkd,bhqd->bhkq", v[:, :, begin:end], of_later)
        # The derivative of a softmax: P * (dP - sum of dP * P).
        of_scores = weights * (of_weights - dots[:, :, None, first:])
        of_scores = (of_scores * _scale(q)).astype(q.dtype)
        of_k.append(_dot("bhkq,bhqd->bhkd", of_scores, later))
        of_q = of_q.at[:, :, first:].add(_dot("bhkq,bhkd->bhqd", of_scores, keys))
    gradients = of_q, jnp.concatenate(of_k, axis=2), jnp.concatenate(of_v, axis=2)
    return jax.tree.map(lambda gradient: gradient.astype(q.dtype), gradients)


_product.defvjp(_forward, _backward)


def _dot(subscripts: str, a: Array, b: Array) -> Array:
    """Multiply with float32 accumulation."""
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _scale(q: Heads) -> float:
    return q.shape[-1] ** -0.5


def _reads(begin: int, end: int) -> Array:
    """Return the causal mask of queries `begin` to `end` over keys before `end`: (query, key)."""
    return jnp.arange(begin, end)[:, None] >= jnp.arange(end)


def _merge(x: Heads) -> Float[Array, "tokens dim"]:
    batch, _, seq, _ = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch * seq, -1)


def _split(x: Float[Array, "tokens dim"], like: Heads) -> Heads:
    batch, heads, seq, width = like.shape
    return x.reshape(batch, seq, heads, width).transpose(0, 2, 1, 3)
