"""What the families share: an embedding, layers and a head, without parameters of their own.

::

    tokens ─► embedding ─► layer ─► layer ─► ... ─► head ─► logits, or their cross-entropy
                 │           ▲                       ▲
                 │           └ by_token, gathered    │
                 └──────────── tied ─────────────────┘

A family names the constructors of its three modules (`Parts`), into whose graphs a call merges the
parameters that it is given. Outside, parameters are nested dicts of arrays; the leaves of "blocks"
have one more dim at the front, the layers.

Modules are imported when a function of the model is first traced (`jaxpipe.models.modules`): a rank
that reads functions which were lowered before needs none, and saves the imports of flax.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer, Key

from jaxpipe.models.kernels.cached_attention import CachedAttention
from jaxpipe.models.kernels.placed_attention import TokenPlaces, placed_attention

Parameters: TypeAlias = dict[str, Any]
Hidden: TypeAlias = Float[Array, "batch seq dim"]
Inputs: TypeAlias = Int[Array, "batch seq"] | Integer[Array, "batch height width channels"]
Part: TypeAlias = Callable[..., Any]
"""A constructor: takes a configuration and `rngs`, returns an `nnx.Module` of fresh parameters."""

INIT_STD = 0.02
"""The standard deviation of fresh kernels and embeddings."""

EMBED, HEAD, BLOCKS = range(3)
"""What is folded into the key of each part; `BLOCKS` is followed by the layer's number."""


class Parts(NamedTuple):
    """The constructors of the modules of a model.

    Args:
        embedding: called with inputs, a key or None, and the positions of tokens or None.
        block: called with hidden states, a key or None, and another attention or None; returns the
            hidden states and what the layer adds to the training loss, or None.
        head: a `Head`.
    """

    embedding: Part
    block: Part
    head: Part


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model of the parts that its configuration says.

    Parameters may come in `param_dtype`, or already cast to `compute_dtype`. Cast ahead, once a
    step: the residuals of a jitted `jax.vjp` then hold no second copy of the kernels.
    """

    config: Any

    @abstractmethod
    def _parts(self) -> Parts:
        """Return the constructors of the modules."""

    @property
    @abstractmethod
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits: heads, hidden, vocabulary."""

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model; of pairs, where a layer is a pair."""
        return self.config.num_layers

    @property
    def sequence(self) -> int:
        """The longest sequence, in tokens."""
        return self.config.sequence

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return self.config.vocabulary

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding."""
        return self.config.tied

    @property
    def can_decode(self) -> bool:
        """Whether a token reads earlier ones alone, so that their keys and values can be kept."""
        return True

    @property
    def switch_length(self) -> int:
        """The longest text whose layers compute as in short ones; 0 where length changes nothing.

        When a text outgrows it, all of its keys and values change.
        """
        return 0

    def of_layer(self, number: int) -> "Transformer":
        """Return the model whose layers all are as that of this number: itself, if all are equal.

        Layers of all kinds have the same parameters. `block` is that of equal layers.
        """
        del number
        return self

    def equal_layers(self, layers: range) -> list[range]:
        """Return consecutive layers in parts, of which each has equal ones."""
        kinds = [self.of_layer(number) for number in layers]
        edges = [
            n for n, one, other in zip(layers[1:], kinds, kinds[1:], strict=False) if one != other
        ]
        return [range(*part) for part in pairwise((layers.start, *edges, layers.stop))]

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters, in `param_dtype`, of consecutive layers and of the ends asked.

        Each leaf depends on `key` and on its own layer's number alone, bit by bit. With a tied
        head and `head` but not `embed`, the part "embed" holds the "tokens" leaf alone; without
        layers there is no part "blocks".

        Raises:
            ValueError: `layers` is not consecutive layers of this model.
        """
        from jaxpipe.models.modules import draw_blocks, draw_end

        config, parts = self.config, self._parts()
        if layers.step != 1 or layers.start < 0 or layers.stop > config.num_layers:
            raise ValueError(
                f"`layers` must be consecutive and within range(0, {config.num_layers}), "
                f"not {layers}"
            )
        params: Parameters = {}
        if embed or (head and config.tied):
            params["embed"] = draw_end(parts.embedding, config, jax.random.fold_in(key, EMBED))
            # Drawn whole, then cut: the tied table equals that of the first stage bit by bit.
            if not embed:
                params["embed"] = {"tokens": params["embed"]["tokens"]}
        if layers:
            numbers = jnp.arange(layers.start, layers.stop)
            of_blocks = jax.random.fold_in(key, BLOCKS)
            params["blocks"] = draw_blocks(parts.block, config, of_blocks, numbers)
        if head:
            params["head"] = draw_end(parts.head, config, jax.random.fold_in(key, HEAD))
        return params

    def embed(
        self,
        params: Parameters,
        inputs: Inputs,
        key: Key[Array, ""] | None,
        positions: Int[Array, "batch seq"] | None = None,
    ) -> Hidden:
        """Return the input of the first layer, in `compute_dtype`; no key, no dropout.

        A token outside the vocabulary makes its row NaN. Tokens are at `positions`, by default
        counted from 0 in each text; pictures have none.

        Raises:
            ValueError: there are more tokens than `sequence`, or pictures have another shape.
        """
        return self._merged(self._parts().embedding, params["embed"])(inputs, key, positions)

    def hidden_shape(self, inputs: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return the shape of what `embed` returns: a vector for each token, or position."""
        config, (batch, seq, *_) = self.config, inputs.shape
        seq = seq if config.picture is None else config.sequence
        return jax.ShapeDtypeStruct((batch, seq, config.dim), jnp.dtype(config.compute_dtype))

    def block(
        self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None
    ) -> Hidden | tuple[Hidden, Float[Array, ""]]:
        """Apply one layer, given one slice of `params["blocks"]`; no key, no dropout.

        If it adds to the training loss, return a pair of its output and that loss.
        """
        output, loss = self._layer(layer)(x, key)
        return output if loss is None else (output, loss)

    def cached_block(self, layer: Parameters, x: Hidden, cached: CachedAttention) -> Hidden:
        """Apply one layer with another attention (`jaxpipe.models.decoder`)."""
        return self._layer(layer)(x, None, cached)[0]

    def placed_embed(
        self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None, places: TokenPlaces
    ) -> Hidden:
        """Return the input of the first layer, of tokens that do not lie in a row."""
        return self.embed(params, inputs, key, places.positions)

    def placed_block(
        self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None, places: TokenPlaces
    ) -> Hidden:
        """Apply one layer to tokens that do not lie in a row."""
        return self._layer(layer)(x, key, placed_attention(places))[0]

    def _layer(self, layer: Parameters) -> Callable[..., tuple[Hidden, Any]]:
        assert self.of_layer(0) is self, "layers differ: `of_layer` has the model of each"
        return self._merged(self._parts().block, layer)

    def _merged(self, part: Part, params: Parameters) -> Any:
        from jaxpipe.models.modules import merged

        return merged(part, self.config, params)

    def head(
        self, params: Parameters, x: Hidden
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits, in float32."""
        return self._merged(self._parts().head, params["head"])(x, self._tied_tokens(params))

    def loss(
        self,
        params: Parameters,
        x: Hidden,
        targets: Int[Array, "batch seq"] | Int[Array, " batch"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy of the head in nats, summed over all targets, in float32.

        A target outside the vocabulary makes it NaN; those of -100 do not count.
        """
        head = self._merged(self._parts().head, params["head"])
        return head.loss(x, self._tied_tokens(params), targets)

    def _tied_tokens(self, params: Parameters) -> Float[Array, "vocabulary dim"] | None:
        return params["embed"]["tokens"] if self.tied else None
