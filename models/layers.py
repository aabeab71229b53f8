"""The layer of a transformer: attention, then an MLP, each with a LayerNorm and a residual.

::

    x ─┬─ norm1 ─ qkv ─ attention ─ project ─ drop ─ + ─┬─ norm2 ─ up ─ GELU ─ down ─ drop ─ + ─
       └─────────────────────────────────────────────┘  └────────────────────────────────────┘

What the backward keeps is chosen here: the inputs of LayerNorm, GELU and attention, not what is
computed inside of them, which the backward computes again. On a CPU core that is no slower, and
it keeps 16 activations of width `dim` per layer, however long the sequence; a score matrix of
`num_heads * sequence` per token would soon dwarf them.

The matrix products see (tokens, dim), not (batch, seq, dim): on the CPU, their backward is then
about a tenth faster. Their names in the drawing are scopes in profiles and jaxprs, forward and
backward.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Key

from jaxpipe.models.attention import self_attention
from jaxpipe.models.cached_attention import CachedAttention
from jaxpipe.models.dropout import dropout
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.scores import Scores

_Result = TypeVar("_Result")

INIT_STD = 0.02
"""The standard deviation of fresh kernels and embeddings."""


def norm(config: GptConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Return a LayerNorm over the width, with epsilon 1e-5 and float32 statistics."""
    # The fast variance, E[x^2] - E[x]^2, cancels where the mean is large.
    return nnx.LayerNorm(
        config.dim, epsilon=1e-5, dtype=config.compute_dtype, use_fast_variance=False, rngs=rngs
    )


def by_token(product: Callable[[Array], _Result], x: Float[Array, "batch seq dim"]) -> _Result:
    """Return products that see (tokens, dim); what is kept for the backward is `x` itself.

    A mesh that divides sequences has no division of their concatenation: kept in one row, each
    device would hold all of it.
    """

    def of_tokens(x: Array) -> _Result:
        return product(gathered(x.reshape(-1, x.shape[-1])))

    # Products are not computed again: no gradient needs their result.
    return jax.checkpoint(of_tokens)(x)


def gathered(flat: Float[Array, "tokens dim"]) -> Float[Array, "tokens dim"]:
    """Return tokens that every device of the mesh's axis `tensor` has, if there is a mesh.

    The devices have their own heads of all tokens from here on. Without it, XLA may go on with all
    heads of their own tokens, and exchange scores.
    """
    if "data" not in jax.sharding.get_abstract_mesh().axis_names:
        return flat
    return jax.lax.with_sharding_constraint(flat, PartitionSpec("data"))


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


class Attention(nnx.Module):
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

    def __call__(
        self, x: Float[Array, "batch seq dim"], cached: CachedAttention | None = None
    ) -> Float[Array, "batch seq dim"]:
        """Return the attention output of each token, of `cached` if it is given."""
        batch, seq, dim = x.shape
        with jax.named_scope("qkv"):
            qkv = by_token(self.qkv, x).reshape(batch, seq, 3, dim)
        heads, form = self.num_heads, self.form
        with jax.named_scope("attention"):
            if cached is None:
                mixed = self_attention(qkv, num_heads=heads, form=form, causal=self.causal)
            else:
                q, k, v = jnp.moveaxis(qkv.reshape(batch, seq, 3, heads, dim // heads), 2, 0)
                mixed = cached(q, k, v, form=form, scores=Scores(causal=self.causal))
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

    def __call__(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq dim"]:
        """Return the output of the MLP for each token."""
        gelu = jax.checkpoint(partial(jax.nn.gelu, approximate=True))
        with jax.named_scope("up"):
            hidden = by_token(self.up, x)
        with jax.named_scope("down"):
            return gathered(self.down(gelu(hidden))).reshape(x.shape)


class Block(nnx.Module):
    """One layer: attention and MLP, each normalised at its input and added to the residual stream.

    Args:
        config: the sizes.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        residual_std = residual_init_std(config.depth)
        self.dropout = config.dropout
        self.norm1 = norm(config, rngs)
        self.attention = Attention(config, residual_std=residual_std, rngs=rngs)
        self.norm2 = norm(config, rngs)
        self.mlp = Mlp(config, residual_std=residual_std, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch seq dim"],
        key: Key[Array, ""] | None,
        cached: CachedAttention | None = None,
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the next layer; dropout is off where `key` is None."""
        # Two keys: equal masks after attention and MLP would drop the same elements.
        first, second = (None, None) if key is None else jax.random.split(key)
        x = attend(self, x, first, cached)
        # Scopes: the norm belongs to the product that reads it.
        with jax.named_scope("up"):
            normed = jax.checkpoint(self.norm2)(x)
        output = self.mlp(normed)
        with jax.named_scope("add2"):
            return x + dropout(output, second, rate=self.dropout)


@runtime_checkable
class Attending(Protocol):
    """The parts of a layer that `attend` reads."""

    norm1: nnx.LayerNorm
    attention: Attention
    dropout: float


def attend(
    layer: Attending,
    x: Float[Array, "batch seq dim"],
    key: Key[Array, ""] | None,
    cached: CachedAttention | None = None,
) -> Float[Array, "batch seq dim"]:
    """Return the residual stream after the attention of a layer."""
    with jax.named_scope("qkv"):
        normed = jax.checkpoint(layer.norm1)(x)
    mixed = layer.attention(normed, cached)
    with jax.named_scope("add1"):
        return x + dropout(mixed, key, rate=layer.dropout)


def residual_init_std(depth: int) -> float:
    """Return the standard deviation of fresh kernels that write to the residual stream.

    Smaller than `INIT_STD` by the root of their number, two in each of `depth` attention layers, so
    that the variance of the stream does not grow with the depth.
    """
    return INIT_STD / math.sqrt(2 * depth)
