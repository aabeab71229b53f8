"""A GPT, or an encoder, that can be partitioned between any two layers: block, embedding and head.

::

    x ─┬─ norm1 ─ qkv ─ attention ─ project ─ drop ─ + ─┬─ norm2 ─ up ─ GELU ─ down ─ drop ─ + ─
       └─────────────────────────────────────────────┘  └────────────────────────────────────┘

Outside, parameters are nested dicts of arrays; inside, they become NNX modules::

    {"embed":  {"tokens":    (vocabulary, dim),
                "positions": (sequence, dim)},
     "blocks": {"norm1":     {"scale", "bias": (layers, dim)},
                "attention": {"qkv":     {"kernel": (layers, dim, 3, dim), "bias"},
                              "project": {"kernel": (layers, dim, dim), "bias"}},
                "norm2":     {"scale", "bias": (layers, dim)},
                "mlp":       {"up":      {"kernel": (layers, dim, hidden), "bias"},
                              "down":    {"kernel": (layers, hidden, dim), "bias"}}},
     "head":   {"norm":      {"scale", "bias": (dim,)},
                "kernel":    (vocabulary, dim), unless tied}}

The columns of qkv are all queries, then all keys, then all values, head after head, as in GPT-2;
its kernel has them in two dims, its bias, (layers, 3 * dim), in one.

With experts, a layer is a pair: "blocks" has the parts "dense", as above, and "sparse", in which
"moe" stands in place of "mlp"::

    {"router": (layers, dim, experts), "up": (layers, experts, dim, hidden),
     "down": (layers, experts, hidden, dim)}

With bottlenecks, there is the part "bottlenecks" of `jaxpipe.models.bottleneck`.

With classes, the head's kernel has a row per class; with patches, "embed" is that of
`jaxpipe.models.patches`.

What the backward keeps is chosen here: the inputs of LayerNorm, GELU and attention, not what is
computed inside of them, which the backward computes again. On a CPU core that is no slower, and
it keeps 16 activations of width `dim` per layer, however long the sequence; a score matrix of
`num_heads * sequence` per token would soon dwarf them. The names in the drawing are scopes in
profiles and jaxprs, forward and backward.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3; the
pair: Lepikhin et al. 2020, "GShard", section 2.2 (every other layer).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.bottleneck import draw_bottlenecks, narrow, widen
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.kernels.attention import self_attention
from jaxpipe.models.kernels.cached_attention import CachedAttention
from jaxpipe.models.kernels.dropout import dropout
from jaxpipe.models.kernels.scores import Scores
from jaxpipe.models.moe.expert_mixture import ExpertMixture
from jaxpipe.models.patches import Patches
from jaxpipe.models.transformer import (
    INIT_STD,
    Head,
    Hidden,
    Parameters,
    Parts,
    Transformer,
    by_token,
    gathered,
    look_up,
    residual_init_std,
    table,
)


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
        gelu = jax.checkpoint(partial(jax.nn.gelu, approximate=True))
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


SPLIT: Final = MappingProxyType(
    {
        "embed.tokens": -2,
        "blocks.attention.qkv.kernel": -1,
        "blocks.attention.project.kernel": -2,
        "blocks.mlp.up.kernel": -1,
        "blocks.mlp.up.bias": -1,
        "blocks.mlp.down.kernel": -2,
        "head.kernel": -2,
    }
)
"""What writes to the middle of a layer is split by columns, what reads from there by rows.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

SPLIT_PAIRS: Final = MappingProxyType(
    {
        # Experts are split by their number: each device has some of them, whole.
        "blocks.sparse.moe.up": -3,
        "blocks.sparse.moe.down": -3,
        **{
            name.replace("blocks.", f"blocks.{part}.", 1): dim
            for name, dim in SPLIT.items()
            for part in ("dense", "sparse")
            if not (part == "sparse" and ".mlp." in name)
        },
    }
)
"""The same for pairs: expert parallelism, in addition to tensor parallelism of the rest."""


@dataclass(frozen=True, slots=True)
class Gpt(Transformer):
    """A GPT of the size of `config`; it holds no parameters.

    >>> import jax
    >>> config = GptConfig(num_layers=4, dim=8, num_heads=2, sequence=16, vocabulary=256)
    >>> gpt = Gpt(config)
    >>> params = gpt.init(jax.random.key(0), layers=range(2, 4), embed=False, head=True)
    >>> sorted(params), params["blocks"]["mlp"]["up"]["kernel"].shape
    (['blocks', 'embed', 'head'], (2, 8, 32))
    """

    config: GptConfig

    @property
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits: heads, hidden, vocabulary.

        Other parameters are replicated, also the bias of qkv, because it is small.
        """
        return SPLIT_PAIRS if self.config.experts else SPLIT

    @property
    def can_decode(self) -> bool:
        """Whether keys and values can be kept.

        Tokens of an encoder read later ones, pictures have none, and experts have a capacity that
        all tokens of a text share. A bottleneck reads the token before.
        """
        config = self.config
        others = config.experts or config.classes or config.patch or config.bottlenecks
        return config.causal and not others

    @property
    def bottlenecks(self) -> Mapping[int, int]:
        """The rank of each bottleneck, by the number of layers before it."""
        return dict(self.config.bottlenecks)

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters: those of every model, and of the bottlenecks beside layers."""
        params = Transformer.init(self, key, layers=layers, embed=embed, head=head)
        drawn = draw_bottlenecks(self.config, key, layers=layers, std=INIT_STD)
        return params | ({"bottlenecks": drawn} if drawn else {})

    def narrow(self, params: Parameters, x: Hidden, after: int) -> Float[Array, "batch seq rank"]:
        """Return what is kept of the output of a layer at a bottleneck."""
        return narrow(params["bottlenecks"][str(after)], x)

    def widen(
        self,
        params: Parameters,
        x: Float[Array, "batch seq rank"],
        tokens: Int[Array, "batch seq"],
        after: int,
    ) -> Hidden:
        """Return the input of the layer behind a bottleneck."""
        return widen(params["bottlenecks"][str(after)], x, tokens)

    def _parts(self) -> Parts:
        return Parts(
            embedding=Patches if self.config.patch else Embedding,
            block=DenseAndExperts if self.config.experts else GptBlock,
            head=gpt_head,
        )
