"""What the runtime needs of a model: embed, block, head, loss. Models satisfy it unknowingly.

A model is a description; its parameters are a pytree of arrays with up to three parts, of which a
stage holds those that it computes::

    {"embed":  {...},    held by the first stage (and, when tied, the "tokens" leaf by the last too)
     "blocks": {...},    every leaf stacked over the layers that the stage holds, in order
     "head":   {...}}    held by the last stage
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Float, Int, Key

Parameters: TypeAlias = dict[str, Any]


@runtime_checkable
class Model(Protocol):
    """A stack of equal layers between an embedding and a head."""

    @property
    def num_layers(self) -> int:
        """How many layers the whole model has."""
        ...

    @property
    def sequence(self) -> int:
        """The longest sequence, in tokens."""
        ...

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding, `params["embed"]["tokens"]`."""
        ...

    @property
    def split(self) -> Mapping[str, int]:
        """The dim along which devices that share a layer split each parameter.

        Names are the keys of the parameters joined by dots, such as "blocks.mlp.up.kernel"; dims
        are counted from the last, which is -1. What is not named is whole on each device.
        """
        ...

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters of some consecutive layers, and of the ends if asked.

        Each leaf depends on `key` and on its own layer alone, never on how the model is cut. With
        a tied head and `head` but not `embed`, the part "embed" holds the "tokens" leaf alone.
        """
        ...

    def embed(
        self, params: Parameters, tokens: Int[Array, "batch seq"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer; dropout is off where `key` is None."""
        ...

    def block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Apply one layer, given one slice of `params["blocks"]`."""
        ...

    def head(
        self, params: Parameters, x: Float[Array, "batch seq dim"]
    ) -> Float[Array, "batch seq vocabulary"]:
        """Return the logits, in float32."""
        ...

    def loss(
        self,
        params: Parameters,
        x: Float[Array, "batch seq dim"],
        targets: Int[Array, "batch seq"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy of the head in nats, summed over all tokens, in float32.

        It takes what `head` takes, not logits, so that it need not hold those of all tokens.
        """
        ...
