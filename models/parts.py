"""The parts of a model, as NNX modules: an embedding, a layer and a head; fresh parameters.

A model of this package is made of three constructors. It holds the graphs of their modules, into
which a call merges the parameters that it is given.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int, Key

Parameters: TypeAlias = dict[str, Any]

EMBED, HEAD, BLOCKS = range(3)
"""What is folded into the key of each part; `BLOCKS` is followed by the layer's number."""


@runtime_checkable
class Sizes(Protocol):
    """What fresh parameters need of a configuration, which can be hashed."""

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding."""
        ...

    @property
    def param_dtype(self) -> str:
        """The format of fresh parameters."""
        ...


@runtime_checkable
class Part(Protocol):
    """A constructor of a module with fresh parameters."""

    def __call__(self, config: Any, /, *, rngs: nnx.Rngs) -> nnx.Module:
        """Return the module for a configuration."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The constructors of the parts of a model."""

    embedding: Part
    block: Part
    head: Part

    def init(
        self, config: Sizes, key: Key[Array, ""], *, layers: range, embed: bool, head: bool
    ) -> Parameters:
        """Return fresh parameters, in `param_dtype`, of consecutive layers and of the ends asked.

        Each leaf depends on `key` and on its own layer's number alone, bit by bit. With a tied
        head and `head` but not `embed`, the part "embed" holds the "tokens" leaf alone; without
        layers there is no part "blocks".

        Raises:
            ValueError: `layers` is not consecutive layers of this model.
        """
        if layers.step != 1 or layers.start < 0 or layers.stop > config.num_layers:
            raise ValueError(
                f"`layers` must be consecutive and within range(0, {config.num_layers}), "
                f"not {layers}"
            )
        params: Parameters = {}
        if embed or (head and config.tied):
            params["embed"] = _draw_end(self.embedding, config, jax.random.fold_in(key, EMBED))
            # Drawn whole, then cut: the tied table equals that of the first stage bit by bit.
            if not embed:
                params["embed"] = {"tokens": params["embed"]["tokens"]}
        if layers:
            numbers = jnp.arange(layers.start, layers.stop)
            of_blocks = jax.random.fold_in(key, BLOCKS)
            params["blocks"] = _draw_blocks(self.block, config, of_blocks, numbers)
        if head:
            params["head"] = _draw_end(self.head, config, jax.random.fold_in(key, HEAD))
        return params


def graph(part: Part, config: Sizes) -> nnx.GraphDef[Any]:
    """Return the graph of a module, into which parameters are merged."""
    # Shapes alone: no array is allocated.
    return nnx.graphdef(nnx.eval_shape(lambda: part(config, rngs=nnx.Rngs(0))))


@partial(jax.jit, static_argnums=(0, 1))
def _draw_end(part: Part, config: Sizes, key: Key[Array, ""]) -> Parameters:
    return _draw(part, config, key)


@partial(jax.jit, static_argnums=(0, 1))
def _draw_blocks(
    part: Part, config: Sizes, key: Key[Array, ""], numbers: Int[Array, " layers"]
) -> Parameters:
    # A loop, not vmap: each layer runs the same compiled body, so the cut cannot change a bit.
    return jax.lax.map(lambda n: _draw(part, config, jax.random.fold_in(key, n)), numbers)


def _draw(part: Part, config: Sizes, key: Key[Array, ""]) -> Parameters:
    # Drawn in float32 and then rounded: bfloat16 uniforms would give only 256 different values.
    state = nnx.state(part(config, rngs=nnx.Rngs(params=key)), nnx.Param)
    return jax.tree.map(lambda leaf: leaf.astype(config.param_dtype), nnx.to_pure_dict(state))
