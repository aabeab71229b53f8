"""Ring attention: each device has a part of every sequence, and keys and values travel around.

::

    2n pieces of a sequence, here n = 3           turn 0     turn 1     turn 2
    device 0    piece 0 and piece 5    queries    keys 0,5   keys 2,3   keys 1,4
    device 1    piece 1 and piece 4    stay       keys 1,4   keys 0,5   keys 2,3
    device 2    piece 2 and piece 3               keys 2,3   keys 1,4   keys 0,5

With one early and one late piece each, all devices compute equally much of causal attention: 3 of
the 4 products of pieces in the first turn, 2 in every other one. What no query of a piece reads is
not computed. Keys and values are sent while the device computes with them; in the backward their
gradients travel along, and are at home after n turns.

A layer calls it in place of its own attention, inside of `jax.shard_map`, as that of
`jaxpipe.models.kernels.cached_attention`. No device ever holds the keys of a whole sequence.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
section 3; the order of the pieces: Brandon et al. 2023, "Striped Attention", section 3, in the form
of Zhu 2024, "ring-flash-attention" (zigzag).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.kernels.cached_attention import Heads, SharedHeads
from jaxpipe.models.kernels.scores import (
    AttentionPiece,
    Differentiated,
    Queries,
    Scores,
    attend,
    attend_backward,
    by_head,
    differentiated,
    merged,
    nothing_attended,
    same_segment,
    segment_lengths,
)
from jaxpipe.models.kernels.scores import Heads as Keys

_Result = TypeVar("_Result")

PIECES = 2
"""Of each sequence, on each device."""

MAX_ROWS = 1024
"""The most queries whose scores are computed at once: 128 MiB of float32 by 32,768 keys a head."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The devices of an axis of `jax.shard_map`, each with an early and a late piece."""

    axis: str
    size: int

    def places(self, device: Array, piece: int, length: int) -> Int[Array, " tokens"]:
        """Return the places in the sequence of the tokens of one piece of a device."""
        number = (device, PIECES * self.size - 1 - device)[piece]
        return number * length + jnp.arange(length)

    def send(self, *arrays: Array | None) -> list[Any]:
        """Send arrays to the next device, and return those of the one before."""
        to_next = [(device, (device + 1) % self.size) for device in range(self.size)]
        return [x if x is None else jax.lax.ppermute(x, self.axis, to_next) for x in arrays]


class RingAttention:
    """Attention to the tokens of all devices of a ring.

    `positions` are those of this device's tokens in their texts, for models that read them;
    `segments` keep packed documents apart.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        positions: Int[Array, "batch part"],
        segments: Int[Array, "batch part"] | None,
    ) -> None:
        self.positions = positions
        self._ring = ring
        self._segments = segments

    @property
    def lengths(self) -> int | Int[Array, "batch part"]:
        """The length of the text of each token, which other devices have parts of."""
        if self._segments is None:
            return self._ring.size * self.positions.shape[1]
        segments = jax.lax.all_gather(self._segments, self._ring.axis, axis=1, tiled=True)
        return segment_lengths(self._segments, segments)

    def __call__(
        self, q: Heads, k: SharedHeads, v: SharedHeads, /, *, form: Attention, scores: Scores
    ) -> Float[Array, "tokens dim"]:
        """Return the attention output of each token of this device."""
        assert form is not Attention.FLASH, "configurations refuse it: it returns no statistic"
        return _attention(*by_head(q, k, v), self._segments, scores, self._ring)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(
    q: Queries, k: Keys, v: Keys, segments: Array | None, how: Scores, ring: Ring
) -> Float[Array, "tokens dim"]:
    return _forward(q, k, v, segments, how, ring)[0]


def _forward(
    q: Queries, k: Keys, v: Keys, segments: Array | None, how: Scores, ring: Ring
) -> tuple[Array, tuple[Array | None, ...]]:
    edges = _edges(q)
    outputs = [nothing_attended(q[..., begin:end, :]) for begin, end in edges]
    for meetings in _turns(k, v, segments, how, ring):
        for meeting in meetings:
            row, (begin, end) = meeting.row, edges[meeting.row]
            outputs[row] = meeting.if_read(meeting.added, outputs[row], q[..., begin:end, :])
    mixed = jnp.concatenate([piece.output() for piece in outputs], axis=-2)
    # Both under one name: a policy that keeps the output must keep the statistic with it.
    output = checkpoint_name(merged(mixed.astype(v.dtype)), "attention")
    statistic = jnp.concatenate([piece.statistic() for piece in outputs], axis=-1)
    return output, (q, k, v, segments, output, checkpoint_name(statistic, "attention"))


def _backward(
    how: Scores, ring: Ring, residuals: tuple[Any, ...], of_output: Array
) -> tuple[Queries, Keys, Keys, None]:
    q, k, v, segments, output, statistic = residuals
    queries, edges = differentiated(q, statistic, output, of_output), _edges(q)
    # In float32, by piece: many turns add to each.
    wide = accumulation_dtype(q.dtype)
    of_q = [jnp.zeros(q[..., begin:end, :].shape, wide) for begin, end in edges]
    of_k, of_v = (
        [jnp.zeros(array[:, :, begin:end].shape, wide) for begin, end in edges] for array in (k, v)
    )
    for meetings in _turns(k, v, segments, how, ring):
        for meeting in meetings:
            row, column = meeting.row, meeting.column
            before = of_q[row], of_k[column], of_v[column]
            mine = queries.part(*edges[row])
            of_q[row], of_k[column], of_v[column] = meeting.if_read(meeting.gradients, before, mine)
        # They follow their keys; after the last turn they are at home.
        of_k, of_v = ring.send(*of_k), ring.send(*of_v)
    gradients = (jnp.concatenate(parts, axis=-2).astype(q.dtype) for parts in (of_q, of_k, of_v))
    of_queries, of_keys, of_values = gradients
    return of_queries, of_keys, of_values, None


_attention.defvjp(_forward, _backward)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """A piece of the queries of this device, and a piece of the keys that it has in a turn.

    `row` and `column` are their numbers among the pieces of the device, `of_queries` and `of_keys`
    their places in the sequence. Where documents are packed, `segments` are those of both.
    """

    row: int
    column: int
    k: Keys
    v: Keys
    of_queries: Array
    of_keys: Array
    segments: tuple[Array, Array] | tuple[None, None]
    how: Scores

    def added(self, before: AttentionPiece, q: Queries) -> AttentionPiece:
        """Return the attention to other keys and to these."""

        def block(_: None, rows: tuple) -> tuple[None, AttentionPiece]:
            places, segments, before, q = rows
            masks = self._masks(places, segments, num_dims=q.ndim)
            return None, before.joined(attend(q, self.k, self.v, self.how, masks))

        rows = self.of_queries, self.segments[0], before, q
        return _by_rows(block, None, rows, axes=(0, 1, -2, -2))[1]

    def gradients(
        self, before: tuple[Array, Array, Array], queries: Differentiated
    ) -> tuple[Array, Array, Array]:
        """Return the gradients of queries, keys and values, with those `before`."""

        def block(carry: tuple[Array, Array], rows: tuple) -> tuple[tuple[Array, Array], Array]:
            places, segments, of_q, *queries = rows
            masks = self._masks(places, segments, num_dims=of_q.ndim)
            more = attend_backward(Differentiated(*queries), self.k, self.v, self.how, masks)
            return (carry[0] + more[1], carry[1] + more[2]), of_q + more[0]

        rows = self.of_queries, self.segments[0], before[0], *queries
        axes = 0, 1, -2, -2, -1, -2, -1
        (of_k, of_v), of_q = _by_rows(block, before[1:], rows, axes=axes)
        return of_q, of_k, of_v

    def _masks(self, places: Array, segments: Array | None, *, num_dims: int) -> list[Array]:
        masks = [self.how.reads(places, self.of_keys)] if self.how.causal else []
        if segments is not None and self.segments[1] is not None:
            masks.append(same_segment(segments, self.segments[1], num_dims=num_dims))
        return masks

    def if_read(
        self, more: Callable[[_Result, Any], _Result], before: _Result, operand: Any
    ) -> _Result:
        """Return `more(before, operand)`, or `before` where no query reads any of the keys."""
        how, queries, keys = self.how, self.of_queries, self.of_keys
        if not how.causal:
            return more(before, operand)
        read = queries[-1] >= keys[0]
        if how.window:
            read &= queries[0] - keys[-1] < how.window
        return jax.lax.cond(read, more, lambda before, _: before, before, operand)


def _turns(
    k: Keys, v: Keys, segments: Array | None, how: Scores, ring: Ring
) -> Iterator[list[_Meeting]]:
    """Yield, for each turn, the meetings of the pieces of this device with those it has then."""
    # Tied to the keys: a scan over layers would compute masks, which are the same in all of them,
    # once, and keep those of all pieces.
    tied = jax.lax.optimization_barrier((jax.lax.axis_index(ring.axis), segments, k))
    (this, segments, k), edges = tied, _edges(k)
    own_segments = segments
    for turn in range(ring.size):
        # Sent before the products of this turn, which need not wait for it.
        is_last = turn + 1 == ring.size
        sent = (k, v, segments) if is_last else ring.send(k, v, segments)
        yield [
            _Meeting(
                row=row,
                column=column,
                k=k[:, :, first:last],
                v=v[:, :, first:last],
                of_queries=ring.places(this, row, end - begin),
                of_keys=ring.places((this - turn) % ring.size, column, last - first),
                segments=(None, None)
                if segments is None or own_segments is None
                else (own_segments[:, begin:end], segments[:, first:last]),
                how=how,
            )
            for row, (begin, end) in enumerate(edges)
            for column, (first, last) in enumerate(edges)
        ]
        k, v, segments = sent


def _edges(x: Array) -> list[tuple[int, int]]:
    """Return the first token of each piece, and the one after its last."""
    length = x.shape[-2] // PIECES
    return [(piece * length, (piece + 1) * length) for piece in range(PIECES)]


def _by_rows(block: Callable, carry: Any, rows: tuple, *, axes: tuple) -> tuple[Any, Any]:
    """Scan over blocks of queries, so that the scores of a whole piece never exist at once.

    `axes` are those of the queries in `rows`, of which the first are places; in results it is the
    last but one.
    """
    num_blocks = _num_blocks(len(rows[0]))
    if num_blocks == 1:
        return block(carry, rows)

    def split(x: Array, axis: int) -> Array:
        axis %= x.ndim
        shape = *x.shape[:axis], num_blocks, -1, *x.shape[axis + 1 :]
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    def join(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, -3)
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])

    blocks = jax.tree.map(lambda a, part: jax.tree.map(lambda x: split(x, a), part), axes, rows)
    carry, results = jax.lax.scan(block, carry, blocks)
    return carry, jax.tree.map(join, results)


def _num_blocks(length: int) -> int:
    """Return the fewest equal blocks of at most `MAX_ROWS` queries.

    >>> [_num_blocks(length) for length in (7, 1024, 3072, 1026)]
    [1, 1, 3, 2]
    """
    fewest = -(-length // MAX_ROWS)
    return next(number for number in range(fewest, length + 1) if length % number == 0)
