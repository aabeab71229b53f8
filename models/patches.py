"""The embedding of pictures: square patches, and one more position that the head reads.

::

    picture             sequence
    ┌───┬───┐
    │ 0 │ 1 │           class ─ patch 0 ─ patch 1 ─ patch 2 ─ patch 3       + positions
    ├───┼───┤
    │ 2 │ 3 │
    └───┴───┘

Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Integer, Key

from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.kernels.dropout import dropout
from jaxpipe.models.modules import table
from jaxpipe.models.transformer import INIT_STD, Hidden


class Patches(nnx.Module):
    """Project each patch to a vector, and add its position's.

    Args:
        config: the sizes.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        shape = (config.patch**2 * config.channels, config.dim)
        self.kernel = nnx.Param(nnx.initializers.normal(INIT_STD)(rngs.params(), shape))
        self.bias = nnx.Param(nnx.initializers.zeros(rngs.params(), (config.dim,)))
        self.start = table(1, config.dim, rngs)
        self.positions = table(config.sequence, config.dim, rngs)

    def __call__(
        self,
        pictures: Integer[Array, "batch height width channels"],
        key: Key[Array, ""] | None,
        places: None = None,
    ) -> Hidden:
        """Return the input of the first layer; pixels are integers below `vocabulary`."""
        assert places is None, "the position of a patch is its place in the picture"
        config, batch = self.config, len(pictures)
        if pictures.shape[1:] != config.picture:
            raise ValueError(
                f"`patch`, `sequence` and `channels` give pictures of shape {config.picture}, not "
                f"{pictures.shape[1:]}"
            )
        dtype = config.compute_dtype
        x = _rows(pictures, config.patch).astype(accumulation_dtype(dtype))
        x = (x / (config.vocabulary - 1) * 2 - 1).astype(dtype)  # from -1 to 1
        x = x @ self.kernel[...].astype(dtype) + self.bias[...].astype(dtype)
        start = jnp.broadcast_to(self.start[...].astype(dtype), (batch, 1, config.dim))
        x = jnp.concatenate([start, x], axis=1) + self.positions[...].astype(dtype)
        return dropout(x, key, rate=config.dropout)


def _rows(pictures: Array, patch: int) -> Array:
    """Return the pixels of each patch as one row, the patches row by row."""
    batch, height, width, channels = pictures.shape
    grid = pictures.reshape(batch, height // patch, patch, width // patch, patch, channels)
    return grid.swapaxes(2, 3).reshape(batch, -1, patch * patch * channels)
