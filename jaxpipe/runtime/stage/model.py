"""The interface of a model: embed, block, head, loss. Models do not import it.

A model is a description; its parameters are a pytree of arrays with up to three parts, each on the
stages that compute with it::

    {"embed":  {...},    on the first stage (and, if tied, the "tokens" leaf on the last one too)
     "blocks": {...},    every leaf stacked over the layers of the stage, in order
     "head":   {...}}    on the last stage
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
        """The number of layers of the whole model."""
        ...

    @property
    def sequence(self) -> int:
        """The maximum length of a sequence, in tokens."""
        ...

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding, `params["embed"]["tokens"]`."""
        ...

    @property
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits over local devices.

        Names are the keys of the parameters joined by dots, such as "blocks.mlp.up.kernel"; dims
        are counted from the last, which is -1. Parameters without an entry are replicated.
        """
        ...

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters of consecutive layers, and optionally of the embedding and head.

        Each leaf depends on `key` and on its own layer alone, never on the partition of layers.
        With a tied head, and `head` but not `embed`, the part "embed" has only the "tokens" leaf.
        """
        ...

    def embed(
        self, params: Parameters, tokens: Int[Array, "batch seq"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer; None for `key` turns dropout off."""
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

        Its input is that of `head`, not logits: those of all tokens may not fit into memory.
        """
        ...
