"""The base of models that wrap another one and change a part of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import jax
from jaxtyping import Array, Float, Int, Key

from jaxpipe.runtime.stage.model import (
    Bottlenecked,
    Hidden,
    Inputs,
    Model,
    Narrow,
    Parameters,
    Targets,
    bottlenecks_of,
    equal_layers,
    hidden_shape,
    model_of_layer,
)

_Wrapped = TypeVar("_Wrapped", bound="WrappedModel")


@dataclass(frozen=True, slots=True)
class WrappedModel:
    """All of a `Model` but its parameters and layers, as `model` has them."""

    model: Model

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model."""
        return self.model.num_layers

    @property
    def sequence(self) -> int:
        """The maximum length of a sequence, in tokens."""
        return self.model.sequence

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return self.model.vocabulary

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding."""
        return self.model.tied

    @property
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that a mesh splits."""
        return self.model.split

    def embed(self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None) -> Hidden:
        """Return the input of the first layer."""
        return self.model.embed(params, inputs, key)

    def hidden_shape(self, inputs: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return the shape of what `embed` returns."""
        return hidden_shape(self.model, inputs)

    def of_layer(self: _Wrapped, number: int) -> _Wrapped:
        """Return the wrapped model whose layers all are as the one of this number."""
        of_layer = model_of_layer(self.model, number)
        return self if of_layer is self.model else replace(self, model=of_layer)

    def equal_layers(self, layers: range) -> list[range]:
        """Return consecutive layers in parts, of which each has equal ones."""
        return equal_layers(self.model, layers)

    @property
    def bottlenecks(self) -> Mapping[int, int]:
        """The ranks of the bottlenecks, by the number of layers before them."""
        return bottlenecks_of(self.model)

    def narrow(self, params: Parameters, x: Hidden, after: int) -> Narrow:
        """Return what is kept of the output of a layer at a bottleneck."""
        return self._bottlenecked.narrow(params, x, after)

    def widen(
        self, params: Parameters, x: Narrow, tokens: Int[Array, "batch seq"], after: int
    ) -> Hidden:
        """Return the input of the layer behind a bottleneck."""
        return self._bottlenecked.widen(params, x, tokens, after)

    @property
    def _bottlenecked(self) -> Bottlenecked:
        assert isinstance(self.model, Bottlenecked), self.model
        return self.model

    def head(
        self, params: Parameters, x: Hidden
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits, in float32."""
        return self.model.head(params, x)

    def loss(self, params: Parameters, x: Hidden, targets: Targets) -> Float[Array, ""]:
        """Return the cross-entropy of the head in nats, summed over all targets."""
        return self.model.loss(params, x, targets)
