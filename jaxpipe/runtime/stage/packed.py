"""Packed samples in a stage: what it reads of them, and the model that keeps documents apart."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Key

from jaxpipe.runtime.stage.model import Hidden, Inputs, Model, Parameters, WithLoss
from jaxpipe.runtime.stage.wrapped_model import WrappedModel


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTargets:
    """What a stage reads of packed samples: their segments; if it is the last one, targets.

    Both are integers (microbatch, seq). A segment is a document, or the filling at the end; all
    tokens of a document have its number.
    """

    segments: Any
    targets: Any = None


@runtime_checkable
class Packs(Protocol):
    """What a `Model` offers for packed samples, in addition."""

    def packed_embed(
        self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None, segments: Array, /
    ) -> Hidden:
        """Return the input of the first layer; positions restart in each segment."""
        ...

    def packed_block(
        self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None, segments: Array, /
    ) -> Hidden | WithLoss:
        """Apply one layer, in which tokens read tokens of their own segment alone."""
        ...


@dataclass(frozen=True, slots=True)
class _Apart(WrappedModel):
    """A model that keeps the segments of one microbatch apart; exists while it is traced."""

    segments: Array

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters."""
        return self.model.init(key, layers=layers, embed=embed, head=head)

    def embed(self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None) -> Hidden:
        """Return the input of the first layer."""
        return self._packs.packed_embed(params, inputs, key, self.segments)

    def block(self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None) -> Hidden | WithLoss:
        """Apply one layer."""
        return self._packs.packed_block(layer, x, key, self.segments)

    @property
    def _packs(self) -> Packs:
        assert isinstance(self.model, Packs), self.model
        return self.model


def packed_model(model: Model, segments: Array) -> Model:
    """Return the model whose tokens read tokens of their own segment alone."""
    if isinstance(model, WrappedModel):
        return replace(model, model=packed_model(model.model, segments))
    return _Apart(model, segments)


def can_pack(model: Model) -> bool:
    """Return whether a model keeps the documents of packed samples apart."""
    return can_pack(model.model) if isinstance(model, WrappedModel) else isinstance(model, Packs)
