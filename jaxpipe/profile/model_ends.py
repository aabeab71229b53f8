"""A model without its layers, for measuring its two ends alone.

::

    stage 0 of 2   tokens -> embed -> (nothing)                the embedding
    stage 1 of 2                      (nothing) -> head -> loss    the head with its loss
"""

from dataclasses import dataclass

from jaxtyping import Array, Float, Key

from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.wrapped_model import WrappedModel


@dataclass(frozen=True, slots=True)
class Ends(WrappedModel):
    """The ends of `model`; a layer between them is the identity and has no parameters."""

    @property
    def num_layers(self) -> int:
        """One for each of two stages."""
        return 2

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return the parameters of the selected ends."""
        assert len(layers) <= self.num_layers, layers
        ends = self.model.init(key, layers=range(0), embed=embed, head=head)
        return {**ends, "blocks": {}}

    def block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Return `x`."""
        assert not layer, layer.keys()
        del key
        return x
