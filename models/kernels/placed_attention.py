"""The attention of tokens that do not lie in a row: packed documents, and parts of a sequence.

::

    segments    0 0 0 1 1 2          keys  0 1 2 3 4 5
    positions   0 1 2 0 1 0     query 0    ■
                                      1    ■ ■
                                      2    ■ ■ ■
                                      3          ■
                                      4          ■ ■
                                      5              ■

A layer calls it in place of its own attention, as those of `kernels.cached_attention`.

Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", section 3.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float, Int

from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.kernels.attention import grouped_attention
from jaxpipe.models.kernels.cached_attention import CachedAttention, Heads, SharedHeads
from jaxpipe.models.kernels.ring_attention import Ring, RingAttention
from jaxpipe.models.kernels.scores import Scores, segment_lengths


@runtime_checkable
class TokenPlaces(Protocol):
    """Where the tokens of a microbatch are (`jaxpipe.runtime.stage.placed.Places`)."""

    @property
    def positions(self) -> Int[Array, "batch seq"]:
        """The position of each token in its text."""
        ...

    @property
    def segments(self) -> Int[Array, "batch seq"] | None:
        """The segment of each token, which reads its own segment alone; None if it reads all."""
        ...

    @property
    def axis(self) -> str | None:
        """The axis of `jax.shard_map` whose devices have a part of each sequence; None if one."""
        ...

    @property
    def num_parts(self) -> int:
        """The number of these devices."""
        ...


def placed_attention(places: TokenPlaces) -> CachedAttention:
    """Return the attention of these tokens."""
    if places.axis is None:
        assert places.segments is not None, "a whole sequence in a row needs no other attention"
        return _PackedAttention(places.positions, places.segments)
    ring = Ring(axis=places.axis, size=places.num_parts)
    return RingAttention(ring, positions=places.positions, segments=places.segments)


class _PackedAttention:
    """Attention within segments; positions restart in each."""

    def __init__(
        self, positions: Int[Array, "batch seq"], segments: Int[Array, "batch seq"]
    ) -> None:
        self.positions = positions
        self._segments = segments

    @property
    def lengths(self) -> Int[Array, "batch seq"]:
        """The length of the segment of each token."""
        return segment_lengths(self._segments, self._segments)

    def __call__(
        self, q: Heads, k: SharedHeads, v: SharedHeads, /, *, form: Attention, scores: Scores
    ) -> Float[Array, "tokens dim"]:
        """Return the attention output of each token."""
        return grouped_attention(q, k, v, form=form, scores=scores, segments=self._segments)
