"""A pair of layers: a dense one, then one whose MLP is a mixture of experts.

::

    x ─ attention ─ MLP ─ attention ─ router ─┬─ expert 0 ─┬─ y
                                              ├─ expert 1 ─┤
                                              └─ ...      ─┘

Every second layer of a model has experts, and all layers of a pipeline are equal: the pair is the
layer that stages count. Residuals, norms and dropout are those of `jaxpipe.models.layers`.

Source: Lepikhin et al. 2020, "GShard", section 2.2 (every other layer).
"""

import jax
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxpipe.models.dropout import dropout
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.layers import INIT_STD, Attention, Block, attend, norm, residual_init_std
from jaxpipe.models.moe.mixture import Mixture

Hidden = Float[Array, "batch seq dim"]


class SparseBlock(nnx.Module):
    """A layer with experts; like `jaxpipe.models.layers.Block` but for its MLP.

    Args:
        config: the sizes.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        routing, residual_std = config.routing, residual_init_std(config.depth)
        assert routing is not None, config
        self.dropout = config.dropout
        self.norm1 = norm(config, rngs)
        self.attention = Attention(config, residual_std=residual_std, rngs=rngs)
        self.norm2 = norm(config, rngs)
        self.moe = Mixture(
            routing,
            dim=config.dim,
            hidden=config.hidden,
            dtype=config.compute_dtype,
            std=INIT_STD,
            residual_std=residual_std,
            rngs=rngs,
        )

    def __call__(
        self, x: Hidden, key: Key[Array, ""] | None
    ) -> tuple[Hidden, Float[Array, ""] | None]:
        """Return the input of the next layer, and the auxiliary loss, a mean over tokens."""
        first, second = (None, None) if key is None else jax.random.split(key)
        x = attend(self, x, first)
        with jax.named_scope("router"):
            normed = jax.checkpoint(self.norm2)(x)
        output, loss = self.moe(normed)
        with jax.named_scope("add2"):
            return x + dropout(output, second, rate=self.dropout), loss


class Pair(nnx.Module):
    """A dense layer and one with experts.

    Args:
        config: the sizes.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        self.labels = config.classes > 0
        self.dense = Block(config, rngs=rngs)
        self.sparse = SparseBlock(config, rngs=rngs)

    def __call__(
        self, x: Hidden, key: Key[Array, ""] | None
    ) -> Hidden | tuple[Hidden, Float[Array, ""]]:
        """Return the input of the next layer; with auxiliary losses a pair of it and their sum.

        The sum is in the units of the model's loss, a sum over targets: tokens, or samples.
        """
        first, second = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("dense"):
            x = self.dense(x, first)
        with jax.named_scope("sparse"):
            x, loss = self.sparse(x, second)
        if loss is None:
            return x
        return x, loss * (x.shape[0] if self.labels else x.shape[0] * x.shape[1])
