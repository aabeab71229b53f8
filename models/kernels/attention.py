"""Self-attention: blocked matrix products, or fused kernels of a GPU or of a BLAS.

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

Its backward is its own: it keeps the output and one statistic per query and head
(`jaxpipe.models.kernels.scores`).

Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.1; the window: Beltagy et al.
2020, "Longformer", section 3.1.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.kernels.blas_attention import blas_attention, suitable_calls
from jaxpipe.models.kernels.scores import (
    Heads,
    Queries,
    Scores,
    attend,
    attend_backward,
    by_head,
    differentiated,
    merged,
    same_segment,
)

MAX_PARTS = 4
"""Into how many parts a sequence is cut at most: of n parts (n + 1) / 2n is computed."""

MIN_PART = 128
"""The shortest part, in tokens: products of shorter ones are slower by more than they save."""


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
    if chosen_form(form, qkv, scores) is Attention.FLASH:
        return _fused(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], scores)
    if form is Attention.AUTO and (calls := suitable_calls(qkv, scores)) is not None:
        return blas_attention((qkv,), scores, calls)
    # Split, not indexed: gradients are put side by side in place of a sum of three padded with 0.
    q, k, v = (part[:, :, 0].transpose(0, 2, 1, 3) for part in jnp.split(qkv, 3, axis=2))
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
    if segments is None and chosen_form(form, q, scores) is Attention.FLASH:
        return _fused(q, k, v, scores)
    is_whole = segments is None and k.shape[1] == q.shape[1]
    if form is Attention.AUTO and is_whole and (calls := suitable_calls(q, scores)) is not None:
        return blas_attention((q, k, v), scores, calls)
    return _product(*by_head(q, k, v), segments, scores)


def parts(sequence: int) -> list[tuple[int, int]]:
    """Return the first token of each part and the one after its last.

    >>> parts(7), parts(300), parts(2048)[-1]
    ([(0, 7)], [(0, 150), (150, 300)], (1536, 2048))
    """
    # Rounded up twice: parts are as equal as can be, and at most MAX_PARTS.
    size = -(-sequence // max(1, min(MAX_PARTS, sequence // MIN_PART)))
    return [(begin, min(begin + size, sequence)) for begin in range(0, sequence, size)]


def chosen_form(form: Attention, q: Array, scores: Scores) -> Attention:
    """Resolve AUTO: the fused kernel, if it supports the device, shape, format and scores."""
    if form is not Attention.AUTO:
        return form
    width, length = q.shape[-1], q.shape[1]
    fused = q.dtype.itemsize == 2 and width % 8 == 0 and width <= 128 and not scores.softcap
    return Attention.FLASH if fused and length % 2 == 0 and _has_fused() else Attention.PRODUCT


def _has_fused() -> bool:
    """Return whether cuDNN's kernel runs on the devices of this process: from Ampere on."""
    if jax.default_backend() != "gpu":
        return False
    # "8.0" of an A100; AMD's devices have another kind of name.
    version = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    return version[:1].isdigit() and float(version) >= 8


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
        masks = _masks(range(begin, end), range(first, last), segments, how, num_dims=q.ndim)
        keys, values = k[:, :, first:last], v[:, :, first:last]
        piece = attend(q[..., begin:end, :], keys, values, how, masks)
        mixed.append(piece.output().astype(v.dtype))
        statistics.append(piece.statistic())
    # Both under one name: a policy that keeps the output must keep the statistic with it.
    output = checkpoint_name(merged(jnp.concatenate(mixed, axis=-2)), "attention")
    statistic = checkpoint_name(jnp.concatenate(statistics, axis=-1), "attention")
    return output, (q, k, v, segments, output, statistic)


def _backward(
    how: Scores, residuals: tuple[Any, ...], of_output: Array
) -> tuple[Queries, Heads, Heads, None]:
    q, k, v, segments, output, statistic = residuals
    # Accumulated in float32: parts of the keys add to the same queries.
    of_q = jnp.zeros(q.shape, accumulation_dtype(q.dtype))
    of_k, of_v = [], []
    queries = differentiated(q, statistic, output, of_output)
    length = q.shape[-2]
    for begin, end in parts(length):
        first, last = _queries_of(begin, end, length, how)
        masks = _masks(range(first, last), range(begin, end), segments, how, num_dims=q.ndim)
        keys, values = k[:, :, begin:end], v[:, :, begin:end]
        more, of_keys, of_values = attend_backward(
            queries.part(first, last), keys, values, how, masks
        )
        of_q = of_q.at[..., first:last, :].add(more)
        of_k.append(of_keys)
        of_v.append(of_values)
    gradients = of_q, jnp.concatenate(of_k, axis=2), jnp.concatenate(of_v, axis=2)
    of_q, of_k, of_v = (gradient.astype(q.dtype) for gradient in gradients)
    return of_q, of_k, of_v, None


_product.defvjp(_forward, _backward)


def _keys_of(begin: int, end: int, length: int, how: Scores) -> tuple[int, int]:
    """Return the first key that a part of the queries reads, and the one after the last."""
    first = max(0, begin - how.window + 1) if how.window else 0
    return first, end if how.causal else length


def _queries_of(begin: int, end: int, length: int, how: Scores) -> tuple[int, int]:
    """Return the first query that reads a part of the keys, and the one after the last."""
    last = min(length, end - 1 + how.window) if how.window else length
    return begin if how.causal else 0, last


def _masks(
    queries: range, keys: range, segments: Array | None, how: Scores, *, num_dims: int
) -> list[Array]:
    """Return the masks of causal attention and of segments."""
    masks = []
    if how.causal:
        masks.append(how.reads(*(jnp.arange(n.start, n.stop) for n in (queries, keys))))
    if segments is not None:
        of_queries, of_keys = (segments[:, n.start : n.stop] for n in (queries, keys))
        masks.append(same_segment(of_queries, of_keys, num_dims=num_dims))
    return masks
