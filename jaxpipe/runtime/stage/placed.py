"""Tokens that do not lie in a row: packed documents, and parts of a sequence on several devices."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jaxpipe.runtime.stage.model import Hidden, Inputs, Model, Parameters, WithLoss
from jaxpipe.runtime.stage.wrapped_model import WrappedModel


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParts:
    """What a stage reads of samples beside its input, where that is more than targets.

    All are integers (microbatch, seq), or None. Every stage reads the `segments` of packed samples:
    a segment is a document, or the filling at the end, and all tokens of a document have its
    number. A stage behind a bottleneck reads `tokens`, those that the first stage has read. The
    last stage reads `targets`.
    """

    segments: Any = None
    tokens: Any = None
    targets: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the tokens of a microbatch are; exists while a stage is traced.

    `positions` (batch, seq) are those in their text; a token reads tokens of its own segment alone,
    where there are `segments` (batch, seq). With an `axis` of `jax.shard_map`, these are one of
    `num_parts` parts of each sequence, in the order of `jaxpipe.runtime.stage.context`.
    """

    positions: Array
    segments: Array | None = None
    axis: str | None = None
    num_parts: int = 1


@runtime_checkable
class Placed(Protocol):
    """What a `Model` offers for packed samples and for parts of a sequence, in addition."""

    def placed_embed(
        self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None, places: Places, /
    ) -> Hidden:
        """Return the input of the first layer."""
        ...

    def placed_block(
        self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None, places: Places, /
    ) -> Hidden | WithLoss:
        """Apply one layer."""
        ...


@dataclass(frozen=True, slots=True)
class _At(WrappedModel):
    """A model whose tokens are at these places."""

    places: Places

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters."""
        return self.model.init(key, layers=layers, embed=embed, head=head)

    def embed(self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None) -> Hidden:
        """Return the input of the first layer."""
        return self._placed.placed_embed(params, inputs, key, self.places)

    def block(self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None) -> Hidden | WithLoss:
        """Apply one layer."""
        return self._placed.placed_block(layer, x, key, self.places)

    @property
    def _placed(self) -> Placed:
        assert isinstance(self.model, Placed), self.model
        return self.model


def model_at(model: Model, places: Places) -> Model:
    """Return the model whose tokens are at these places."""
    if isinstance(model, WrappedModel):
        return replace(model, model=model_at(model.model, places))
    return _At(model, places)


def has_places(model: Model) -> bool:
    """Return whether a model is one of `model_at`."""
    if isinstance(model, _At):
        return True
    return isinstance(model, WrappedModel) and has_places(model.model)


def can_place(model: Model) -> bool:
    """Return whether a model takes tokens that do not lie in a row."""
    return can_place(model.model) if isinstance(model, WrappedModel) else isinstance(model, Placed)


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
