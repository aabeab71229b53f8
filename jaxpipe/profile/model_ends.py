"""A model without its layers, for measuring its two ends alone.

::

    stage 0 of 2   tokens -> embed -> (nothing)                the embedding
    stage 1 of 2                      (nothing) -> head -> loss    the head with its loss
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Array, Float, Int, Key

from jaxpipe.runtime.stage.model import Model, Parameters


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of `model`; a layer between them is the identity and has no parameters."""

    model: Model

    @property
    def num_layers(self) -> int:
        """One for each of two stages."""
        return 2

    @property
    def sequence(self) -> int:
        """That of the model."""
        return self.model.sequence

    @property
    def vocabulary(self) -> int:
        """That of the model."""
        return self.model.vocabulary

    @property
    def tied(self) -> bool:
        """As in the model."""
        return self.model.tied

    @property
    def split(self) -> Mapping[str, int]:
        """That of the model."""
        return self.model.split

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return the parameters of the selected ends."""
        assert len(layers) <= self.num_layers, layers
        ends = self.model.init(key, layers=range(0), embed=embed, head=head)
        return {**ends, "blocks": {}}

    def embed(
        self, params: Parameters, tokens: Int[Array, "batch seq"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Delegate to the model."""
        return self.model.embed(params, tokens, key)

    def block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Return `x`."""
        assert not layer, layer.keys()
        del key
        return x

    def head(
        self, params: Parameters, x: Float[Array, "batch seq dim"]
    ) -> Float[Array, "batch seq vocabulary"]:
        """Delegate to the model."""
        return self.model.head(params, x)

    def loss(
        self,
        params: Parameters,
        x: Float[Array, "batch seq dim"],
        targets: Int[Array, "batch seq"],
    ) -> Float[Array, ""]:
        """Delegate to the model."""
        return self.model.loss(params, x, targets)
