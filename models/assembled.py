"""What all models of the catalogue share: an embedding, equal layers and a head.

A model has a configuration and no parameters. Its modules are built once, as graphs, into which the
parameters of a call are merged.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.ends import Head
from jaxpipe.models.parts import Parameters, Parts, graph


@dataclass(frozen=True, slots=True)
class Assembled:
    """A model of the parts that its configuration says; subclasses call the layers.

    Parameters may come in `param_dtype`, or already cast to `compute_dtype`. Cast ahead, once a
    step: the residuals of a jitted `jax.vjp` then hold no second copy of the kernels.
    """

    config: Any
    # Derived from `config`: no part of equality or of the hash, which `jit` needs.
    _embedding: nnx.GraphDef[Any] = field(init=False, repr=False, compare=False)
    _block: nnx.GraphDef[Any] = field(init=False, repr=False, compare=False)
    _head: nnx.GraphDef[Head] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self._parts()
        object.__setattr__(self, "_embedding", graph(parts.embedding, self.config))
        object.__setattr__(self, "_block", graph(parts.block, self.config))
        object.__setattr__(self, "_head", graph(parts.head, self.config))

    @abstractmethod
    def _parts(self) -> Parts:
        """Return the constructors of the parts."""

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

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters, as `Parts.init` draws them."""
        return self._parts().init(self.config, key, layers=layers, embed=embed, head=head)

    def head(
        self, params: Parameters, x: Float[Array, "batch seq dim"]
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits, in float32."""
        return nnx.merge(self._head, params["head"])(x, self._tied_tokens(params))

    def loss(
        self,
        params: Parameters,
        x: Float[Array, "batch seq dim"],
        targets: Int[Array, "batch seq"] | Int[Array, " batch"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy of the head in nats, summed over all targets, in float32.

        A target outside the vocabulary makes it NaN; those of -100 do not count.
        """
        head = nnx.merge(self._head, params["head"])
        return head.loss(x, self._tied_tokens(params), targets)

    def _tied_tokens(self, params: Parameters) -> Float[Array, "vocabulary dim"] | None:
        return params["embed"]["tokens"] if self.tied else None
