"""The interface of a model: embed, block, head, loss. Models do not import it.

A model is a description; its parameters are a pytree of arrays with up to three parts, each on the
stages that compute with it::

    {"embed":  {...},    on the first stage (and, if tied, the "tokens" leaf on the last one too)
     "blocks": {...},    every leaf stacked over the layers of the stage, in order
     "head":   {...}}    on the last stage

A model with bottlenecks (`Bottlenecked`) has the part "bottlenecks" on the stages beside them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
from jaxtyping import Array, Float, Int, Integer, Key

Parameters: TypeAlias = dict[str, Any]

Inputs: TypeAlias = Int[Array, "batch seq"] | Integer[Array, "batch height width channels"]
"""Tokens, or the pixels of pictures."""

Targets: TypeAlias = Int[Array, "batch seq"] | Int[Array, " batch"]
"""The next tokens, or the labels of samples."""

Hidden: TypeAlias = Float[Array, "batch seq dim"]

Narrow: TypeAlias = Float[Array, "batch seq rank"]
"""What is kept of an activation at a bottleneck."""

WithLoss: TypeAlias = tuple[Hidden, Float[Array, ""]]
"""An activation, and what the layers that computed it add to the loss."""


@runtime_checkable
class Model(Protocol):
    """A stack of layers between an embedding and a head: equal ones, or those of a `Varied`."""

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

    def embed(self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None, /) -> Hidden:
        """Return the input of the first layer; None for `key` turns dropout off."""
        ...

    def block(
        self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None, /
    ) -> Hidden | WithLoss:
        """Apply one layer, given one slice of `params["blocks"]`.

        A layer that adds to the training loss, such as the load-balance loss of a router, returns a
        pair: its output, and what it adds, in the units of `loss`. All layers do, or none does.
        """
        ...

    def head(
        self, params: Parameters, x: Hidden, /
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits, in float32."""
        ...

    def loss(self, params: Parameters, x: Hidden, targets: Targets, /) -> Float[Array, ""]:
        """Return the cross-entropy of the head in nats, summed over all targets, in float32.

        Targets of -100 do not count (`jaxpipe.runtime.data.order.samples.IGNORED`).

        Its input is that of `head`, not logits: those of all tokens may not fit into memory.
        """
        ...


@runtime_checkable
class Bottlenecked(Protocol):
    """What a `Model` with bottlenecks offers, in addition: places where it keeps fewer numbers.

    Their parameters are the part "bottlenecks" of those of the stages beside them.
    """

    @property
    def bottlenecks(self) -> Mapping[int, int]:
        """The numbers that are kept of a token, by the number of layers before the place."""
        ...

    def narrow(self, params: Parameters, x: Hidden, after: int, /) -> Narrow:
        """Return what is kept of the output of the layer before the place."""
        ...

    def widen(
        self, params: Parameters, x: Narrow, tokens: Int[Array, "batch seq"], after: int, /
    ) -> Hidden:
        """Return the input of the layer behind the place."""
        ...


def bottlenecks_of(model: Model) -> Mapping[int, int]:
    """Return the ranks of the bottlenecks of a model, by the number of layers before them."""
    return model.bottlenecks if isinstance(model, Bottlenecked) else {}


@runtime_checkable
class Shaped(Protocol):
    """What a `Model` that knows the shape of its activations offers, in addition.

    Others are traced for it, at each start.
    """

    def hidden_shape(self, inputs: jax.ShapeDtypeStruct, /) -> jax.ShapeDtypeStruct:
        """Return the shape of what `embed` returns."""
        ...


def hidden_shape(model: Model, inputs: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the shape of the input of a layer, given that of samples."""
    is_shaped = isinstance(model, Shaped)
    return model.hidden_shape(inputs) if is_shaped else _embedded.eval_shape(model, inputs)


# JAX keeps what it has traced by function and static arguments: all stages of a process ask.
@partial(jax.jit, static_argnums=0)
def _embedded(model: Model, inputs: Inputs) -> Hidden:
    params = model.init(jax.random.key(0), layers=range(0), embed=True, head=False)
    return model.embed(params, inputs, None)


@runtime_checkable
class Varied(Protocol):
    """What a `Model` whose layers may differ offers, in addition; their parameters are alike."""

    def of_layer(self, number: int, /) -> Model:
        """Return the model whose layers all are as the one of this number.

        Those of equal layers are equal, and the model itself where all layers are.
        """
        ...

    def equal_layers(self, layers: range, /) -> list[range]:
        """Return consecutive layers in parts, of which each has equal ones."""
        ...


def model_of_layer(model: Model, number: int) -> Model:
    """Return the model whose `block` is the layer of this number."""
    return model.of_layer(number) if isinstance(model, Varied) else model


def equal_layers(model: Model, layers: range) -> list[range]:
    """Return consecutive layers in parts, of which each has equal ones."""
    return model.equal_layers(layers) if isinstance(model, Varied) else [layers]


@runtime_checkable
class Tuned(Protocol):
    """A `Model` of which some parameters are frozen; all parameters of another are trained.

    Names are those of tensors in checkpoints, such as "blocks.3.mlp.up.kernel".
    """

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model."""
        ...

    @property
    def merges(self) -> bool:
        """Whether `merged` changes any parameter."""
        ...

    def trains(self, name: str, /) -> bool:
        """Return whether a parameter is trained; others never change, and have no gradient."""
        ...

    def adds(self, name: str, /) -> bool:
        """Return whether a parameter is not in the checkpoint of an imported model."""
        ...

    def merged(self, params: Parameters, /) -> Parameters:
        """Return what `embed`, `block`, `head` and `loss` read, computed once a step."""
        ...
