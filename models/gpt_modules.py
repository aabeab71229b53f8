"""The modules of a GPT: block, embedding and head (`jaxpipe.models.gpt` draws and names them)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.kernels.activations import gelu
from jaxpipe.models.kernels.attention import self_attention
from jaxpipe.models.kernels.cached_attention import CachedAttention
from jaxpipe.models.kernels.dropout import dropout
from jaxpipe.models.kernels.scores import Scores
from jaxpipe.models.modules import Head, by_token, gathered, look_up, residual_init_std, table
from jaxpipe.models.moe.expert_mixture import ExpertMixture
from jaxpipe.models.transformer import INIT_STD, Hidden


def norm(config: GptConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Return a LayerNorm over the width, with epsilon 1e-5 and float32 statistics."""
    # The fast variance, E[x^2] - E[x]^2, cancels where the mean is large.
    return nnx.LayerNorm(
        config.dim, epsilon=1e-5, dtype=config.compute_dtype, use_fast_variance=False, rngs=rngs
    )


class QueriesKeysValues(nnx.Module):
    """Project each token to query, key and value with one matrix product.

    The three have a dim of the kernel, so that its last dim can be split by heads.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        dim = config.dim
        self.dtype = config.compute_dtype
        self.kernel = nnx.Param(nnx.initializers.normal(INIT_STD)(rngs.params(), (dim, 3, dim)))
        self.bias = nnx.Param(nnx.initializers.zeros(rngs.params(), (3 * dim,)))

    def __call__(self, x: Float[Array, "tokens dim"]) -> Float[Array, "tokens 3 dim"]:
        """Return the queries, keys and values of each token, each head after head."""
        kernel, bias = self.kernel[...].astype(self.dtype), self.bias[...].astype(self.dtype)
        return jnp.tensordot(x.astype(self.dtype), kernel, 1) + bias.reshape(kernel.shape[1:])


class GptAttention(nnx.Module):
    """Multi-head self-attention with its projections, causal or not.

    Its output before the projection carries the name "attention", for policies of
    `jax.checkpoint`. The attention probabilities are not dropped: the fused kernels cannot.

    Args:
        config: the sizes.
        residual_std: the standard deviation of the kernel that writes to the residual stream.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, residual_std: float, rngs: nnx.Rngs) -> None:
        linear = partial(nnx.Linear, dtype=config.compute_dtype, rngs=rngs)
        self.num_heads = config.num_heads
        self.form = config.attention
        self.causal = config.causal
        self.qkv = QueriesKeysValues(config, rngs=rngs)
        self.project = linear(
            config.dim, config.dim, kernel_init=nnx.initializers.normal(residual_std)
        )

    def __call__(self, x: Hidden, other: CachedAttention | None = None) -> Hidden:
        """Return the attention output of each token, of the `other` attention if it is given."""
        batch, seq, dim = x.shape
        with jax.named_scope("qkv"):
            qkv = by_token(self.qkv, x).reshape(batch, seq, 3, dim)
        heads, form = self.num_heads, self.form
        with jax.named_scope("attention"):
            if other is None:
                mixed = self_attention(qkv, num_heads=heads, form=form, causal=self.causal)
            else:
                q, k, v = jnp.moveaxis(qkv.reshape(batch, seq, 3, heads, dim // heads), 2, 0)
                mixed = other(q, k, v, form=form, scores=Scores(causal=self.causal))
        with jax.named_scope("project"):
            return gathered(self.project(mixed)).reshape(batch, seq, dim)


class Mlp(nnx.Module):
    """Widen each token to `hidden`, apply GELU in its tanh form, and narrow it again.

    Args:
        config: the sizes.
        residual_std: the standard deviation of the kernel that writes to the residual stream.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, residual_std: float, rngs: nnx.Rngs) -> None:
        linear = partial(nnx.Linear, dtype=config.compute_dtype, rngs=rngs)
        self.up = linear(config.dim, config.hidden, kernel_init=nnx.initializers.normal(INIT_STD))
        self.down = linear(
            config.hidden, config.dim, kernel_init=nnx.initializers.normal(residual_std)
        )

    def __call__(self, x: Hidden) -> Hidden:
        """Return the output of the MLP for each token."""
        with jax.named_scope("up"):
            hidden = by_token(self.up, x)
        with jax.named_scope("down"):
            return gathered(self.down(gelu(hidden))).reshape(x.shape)


def mixture(config: GptConfig, *, residual_std: float, rngs: nnx.Rngs) -> ExpertMixture:
    """Return the mixture of experts in place of an MLP, of the same width."""
    assert config.routing is not None, config
    return ExpertMixture(
        config.routing,
        dim=config.dim,
        hidden=config.hidden,
        dtype=config.compute_dtype,
        stds=(INIT_STD, residual_std),
        rngs=rngs,
    )


class GptBlock(nnx.Module):
    """One layer: attention and MLP, each normalised at its input and added to the residual stream.

    Args:
        config: the sizes.
        rngs: the source of fresh parameters.
        sparse: whether the MLP is a mixture of experts.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs, sparse: bool = False) -> None:
        std = residual_init_std(config.depth)
        self.dropout = config.dropout
        self.sparse = sparse
        self.norm1 = norm(config, rngs)
        self.attention = GptAttention(config, residual_std=std, rngs=rngs)
        self.norm2 = norm(config, rngs)
        if sparse:
            self.moe = mixture(config, residual_std=std, rngs=rngs)
        else:
            self.mlp = Mlp(config, residual_std=std, rngs=rngs)

    def __call__(
        self, x: Hidden, key: Key[Array, ""] | None, other: CachedAttention | None = None
    ) -> tuple[Hidden, Float[Array, ""] | None]:
        """Return the input of the next layer, and the auxiliary loss of experts, a mean.

        Dropout is off where `key` is None; attention is the `other` one, if it is given.
        """
        # Two keys: equal masks after attention and MLP would drop the same elements.
        first, second = (None, None) if key is None else jax.random.split(key)
        # Scopes: a norm belongs to the product that reads it.
        with jax.named_scope("qkv"):
            normed = jax.checkpoint(self.norm1)(x)
        mixed = self.attention(normed, other)
        with jax.named_scope("add1"):
            x = x + dropout(mixed, first, rate=self.dropout)
        with jax.named_scope("router" if self.sparse else "up"):
            normed = jax.checkpoint(self.norm2)(x)
        output, loss = self.moe(normed) if self.sparse else (self.mlp(normed), None)
        with jax.named_scope("add2"):
            return x + dropout(output, second, rate=self.dropout), loss


class DenseAndExperts(nnx.Module):
    """A dense layer and one with experts, which stages count as one: all layers are equal.

    Args:
        config: the sizes.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        self.labels = config.classes > 0
        self.by_token = config.routing is not None and config.routing.is_by_token
        self.dense = GptBlock(config, rngs=rngs)
        self.sparse = GptBlock(config, rngs=rngs, sparse=True)

    def __call__(
        self, x: Hidden, key: Key[Array, ""] | None, other: CachedAttention | None = None
    ) -> tuple[Hidden, Float[Array, ""] | None]:
        """Return the input of the next layer, and the auxiliary loss, if there is one.

        The loss is in the units of the model's, a sum over targets: tokens, or samples.
        """
        assert other is None or self.by_token, "configurations refuse it: texts would share slots"
        first, second = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("dense"):
            x, _ = self.dense(x, first, other)
        with jax.named_scope("sparse"):
            x, loss = self.sparse(x, second, other)
        if loss is None:
            return x, None
        return x, loss * (x.shape[0] if self.labels else x.shape[0] * x.shape[1])


class Embedding(nnx.Module):
    """Add a token's vector to its position's; see `look_up`.

    Args:
        config: the sizes.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.tokens = table(config.vocabulary, config.dim, rngs)
        self.positions = table(config.sequence, config.dim, rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch seq"],
        key: Key[Array, ""] | None,
        places: Int[Array, "batch seq"] | None = None,
    ) -> Hidden:
        """Return the input of the first layer; dropout is off where `key` is None.

        Tokens are at the positions `places`, by default counted from 0 in each sequence.
        """
        vectors = look_up(self.tokens[...], tokens, sequence=self.config.sequence)
        positions = self.positions[: tokens.shape[1]]
        if places is not None:
            positions = self.positions[...].at[places].get(mode="fill")
        # Added in the format of the parameters, rounded once.
        x = (vectors + positions).astype(self.config.compute_dtype)
        return dropout(x, key, rate=self.config.dropout)


def gpt_head(config: GptConfig, *, rngs: nnx.Rngs) -> Head:
    """Return the head: LayerNorm, then the logits of tokens or classes."""
    over = norm(config, rngs)
    kernel = None if config.tied else table(config.classes or config.vocabulary, config.dim, rngs)
    return Head(over, kernel, logits_bytes=config.logits_bytes, labels=config.classes > 0)
