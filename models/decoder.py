"""Prefill and one-token steps of a whole model, with a cache of keys and values.

The layers are those of training, with another attention
(`jaxpipe.models.kernels.cached_attention`)::

    prompts ─► prefill ─► logits, cache ─┐
                             ┌───────────┴─► draw a token ─► step ─► logits, cache ─┐
                             └──────────────────────────────────────────────────────┘
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpipe.models.kernels.cached_attention import Cache, Decode, Prefill
from jaxpipe.models.transformer import Parameters, Transformer

Logits = Float[Array, "batch vocabulary"]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model of text whose tokens read earlier ones alone; `room` is the longest text."""

    model: Transformer
    room: int

    def __post_init__(self) -> None:
        assert can_decode(self.model), self.model
        assert 0 < self.room <= self.model.sequence, (self.room, self.model.sequence)

    def prefill(
        self, params: Parameters, prompts: Int[Array, "batch seq"], lengths: Int[Array, " batch"]
    ) -> tuple[Logits, Cache]:
        """Return the logits after the last token of each prompt, and the cache.

        Prompts that are shorter than others are padded at their end, with any token.
        """

        def layer(model: Transformer, x: Array, params: Parameters) -> tuple[Array, Array]:
            attention = Prefill(lengths)
            return model.cached_block(params, x, attention), jnp.stack(attention.kept)

        x, parts = self.model.embed(params, prompts, None), []
        for layers in self._parts():
            step = partial(layer, self.model.of_layer(layers.start))
            x, caches = jax.lax.scan(step, x, _rows(params["blocks"], layers))
            parts.append(caches.reshape(-1, *caches.shape[2:]))  # a group has several
        caches = jnp.concatenate(parts)
        padding = [(0, 0)] * caches.ndim
        padding[3] = (0, self.room - prompts.shape[1])
        last = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)
        return self.model.head(params, last)[:, 0], jnp.pad(caches, padding)

    def step(
        self,
        params: Parameters,
        tokens: Int[Array, " batch"],
        positions: Int[Array, " batch"],
        cache: Cache,
    ) -> tuple[Logits, Cache]:
        """Return the logits after one more token of each row, and the cache with it.

        `positions` are those of the tokens: the lengths of the texts before them. The cache of a
        text that outgrows `model.switch_length` is another one: that of `prefill`, with the token.
        """
        per_layer = cache.shape[0] // self.model.num_layers

        def layer(
            model: Transformer, carry: tuple[Array, Array], inputs: tuple[Parameters, Array]
        ) -> tuple:
            (x, cache), (params, number) = carry, inputs
            attention = Decode(cache, positions, layer=per_layer * number)
            return (model.cached_block(params, x, attention), attention.cache), None

        x = self.model.embed(params, tokens[:, None], None, positions[:, None])
        for layers in self._parts():
            step = partial(layer, self.model.of_layer(layers.start))
            inputs = _rows(params["blocks"], layers), jnp.asarray(layers)
            (x, cache), _ = jax.lax.scan(step, (x, cache), inputs)
        return self.model.head(params, x)[:, 0], cache

    def _parts(self) -> list[range]:
        return self.model.equal_layers(range(self.model.num_layers))


def _rows(blocks: Parameters, layers: range) -> Parameters:
    return jax.tree.map(lambda leaf: leaf[layers.start : layers.stop], blocks)


def switch_length(model: object) -> int:
    """Return the longest text that a model computes as a short one; 0 if it has no such limit."""
    return model.switch_length if isinstance(model, Transformer) else 0


def padded_limit(model: object, length: int, *, most: int) -> int:
    """Return to how many tokens, at most, padding leaves the logits of a text of this length."""
    switch = switch_length(model)
    return min(switch, most) if length <= switch else most


def can_decode(model: object) -> TypeGuard[Transformer]:
    """Return whether a model is one that `Decoder` knows."""
    return isinstance(model, Transformer) and model.can_decode
