"""The modules of a Llama: layer, embedding, head (`jaxpipe.models.llama` draws and names them)."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.kernels.activations import rounded_once
from jaxpipe.models.kernels.attention import grouped_attention
from jaxpipe.models.kernels.cached_attention import CachedAttention
from jaxpipe.models.kernels.rotary import frequencies, magnitude, rotate
from jaxpipe.models.kernels.scores import Scores
from jaxpipe.models.llama_config import Activation, LlamaConfig
from jaxpipe.models.modules import Head, by_token, gathered, look_up, residual_init_std, table
from jaxpipe.models.moe.expert_mixture import ExpertMixture
from jaxpipe.models.rms_norm import RmsNorm
from jaxpipe.models.transformer import INIT_STD, Hidden


def _linear(
    config: LlamaConfig, rngs: nnx.Rngs, *, bias: bool, std: float = INIT_STD
) -> Callable[[int, int], nnx.Linear]:
    return partial(
        nnx.Linear,
        use_bias=bias,
        dtype=config.compute_dtype,
        kernel_init=nnx.initializers.normal(std),
        rngs=rngs,
    )


class LlamaAttention(nnx.Module):
    """Causal attention with rotary positions, in which groups of heads share keys and values.

    Args:
        config: the sizes and the variant.
        window: how many tokens a token reads at most; 0 for all.
        positions: the configuration of rotary positions; None for none.
        rngs: the source of fresh parameters.
    """

    def __init__(
        self, config: LlamaConfig, *, window: int, positions: LlamaConfig | None, rngs: nnx.Rngs
    ) -> None:
        self.config = config
        self.positions = positions
        self.scores = Scores(
            scale=(config.query_scale or config.width) ** -0.5,
            window=window,
            softcap=config.attention_softcap,
        )
        linear = _linear(config, rngs, bias=config.qkv_bias)
        self.query = linear(config.dim, config.query_width)
        self.key = linear(config.dim, config.kv_width)
        self.value = linear(config.dim, config.kv_width)
        project = _linear(
            config, rngs, bias=config.project_bias, std=residual_init_std(config.depth)
        )
        self.project = project(config.query_width, config.dim)
        if config.qk_norm:
            wide = config.wide_qk_norm
            query_width, key_width = (
                (config.query_width, config.kv_width) if wide else (config.width, config.width)
            )
            self.query_norm = RmsNorm(config, query_width, rngs=rngs)
            self.key_norm = RmsNorm(config, key_width, rngs=rngs)

    def __call__(self, x: Hidden, other: CachedAttention | None = None) -> Hidden:
        """Return the attention output of each token, of the `other` attention if it is given."""
        batch, seq, _ = x.shape
        positions = None if other is None else other.positions
        angles = self._angles(seq, other)
        normed = self.config.qk_norm
        with jax.named_scope("qkv"):
            heads = (batch, seq, -1, self.config.width)
            q, k, v = (product.reshape(heads) for product in by_token(self._products, x))
            q = self._turned(q, self.query_norm if normed else None, positions, angles)
            k = self._turned(k, self.key_norm if normed else None, positions, angles)
        attend = grouped_attention if other is None else other
        with jax.named_scope("attention"):
            mixed = attend(q, k, v, form=self.config.attention, scores=self.scores)
        with jax.named_scope("project"):
            return gathered(self.project(mixed)).reshape(x.shape)

    def _products(self, flat: Float[Array, "tokens dim"]) -> tuple[Array, Array, Array]:
        return self.query(flat), self.key(flat), self.value(flat)

    def _angles(self, seq: int, other: CachedAttention | None) -> Array | np.ndarray | None:
        rope = self.positions
        if rope is None:
            return None
        # Other lengths cost a computation, which most models do not need.
        is_switched = other is not None and rope.switch_length
        return frequencies(rope, other.lengths if other is not None and is_switched else seq)

    def _turned(
        self,
        heads: Array,
        norm: RmsNorm | None,
        positions: Array | None,
        angles: Array | np.ndarray | None,
    ) -> Array:
        rope = self.positions
        if rope is None or angles is None:
            return heads if norm is None else jax.checkpoint(partial(self._normalised, norm))(heads)
        factor = magnitude(rope)

        # Keeps its input, and without a norm nothing: a rotation is linear.
        @jax.checkpoint
        def turn(heads: Array) -> Array:
            normed = heads if norm is None else self._normalised(norm, heads)
            return rotate(normed, angles, positions, magnitude=factor)

        return turn(heads)

    def _normalised(self, norm: RmsNorm, heads: Array) -> Array:
        if not self.config.wide_qk_norm:
            return norm(heads)
        return norm(heads.reshape(*heads.shape[:2], -1)).reshape(heads.shape)


class GatedMlp(nnx.Module):
    """The gated MLP: SwiGLU or GeGLU.

    Args:
        config: the sizes and the activation.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        linear = _linear(config, rngs, bias=config.mlp_bias)
        self.activation = config.activation
        self.gate = linear(config.dim, config.hidden)
        self.up = linear(config.dim, config.hidden)
        down = _linear(config, rngs, bias=config.mlp_bias, std=residual_init_std(config.depth))
        self.down = down(config.hidden, config.dim)

    def __call__(self, x: Hidden) -> Hidden:
        """Return the output of the MLP for each token."""
        with jax.named_scope("up"):
            gate, up = by_token(lambda flat: (self.gate(flat), self.up(flat)), x)
        middle = rounded_once(partial(gated, self.activation))
        with jax.named_scope("down"):
            return gathered(self.down(middle(gate, up))).reshape(x.shape)


def gated(activation: Activation, gate: Array, up: Array) -> Array:
    """Return the middle of a gated MLP."""
    if activation is Activation.SILU:
        return jax.nn.silu(gate) * up
    return jax.nn.gelu(gate, approximate=True) * up


def mixture(config: LlamaConfig, *, rngs: nnx.Rngs) -> ExpertMixture:
    """Return the mixture of experts in place of an MLP: each expert is such an MLP."""
    assert config.routing is not None, config
    return ExpertMixture(
        config.routing,
        dim=config.dim,
        hidden=config.hidden,
        dtype=config.compute_dtype,
        stds=(INIT_STD, residual_init_std(config.depth)),
        rngs=rngs,
        gated=partial(gated, config.activation),
    )


class LlamaBlock(nnx.Module):
    """One attention layer with its MLP.

    Args:
        config: the sizes and the variant.
        window: how many tokens a token reads at most; 0 for all.
        positions: the configuration of rotary positions; None for none.
        rngs: the source of fresh parameters.
    """

    def __init__(
        self, config: LlamaConfig, *, window: int, positions: LlamaConfig | None, rngs: nnx.Rngs
    ) -> None:
        norm = partial(RmsNorm, config, config.dim, rngs=rngs)
        self.pre_norms = config.pre_norms
        self.post_norms = config.post_norms
        self.factor = config.residual_factor
        if config.pre_norms:
            self.norm1 = norm()
        self.attention = LlamaAttention(config, window=window, positions=positions, rngs=rngs)
        if config.pre_norms:
            self.norm2 = norm()
        self.sparse = config.experts > 0
        if self.sparse:
            self.moe = mixture(config, rngs=rngs)
        else:
            self.mlp = GatedMlp(config, rngs=rngs)
        if config.post_norms:
            self.attention_norm = norm()
            self.mlp_norm = norm()

    def __call__(
        self, x: Hidden, key: Key[Array, ""] | None, other: CachedAttention | None = None
    ) -> tuple[Hidden, None]:
        """Return the residual stream after the layer, which adds nothing to the loss."""
        del key  # nothing is dropped
        with jax.named_scope("qkv"):
            normed = jax.checkpoint(self.norm1)(x) if self.pre_norms else x
        mixed = self.attention(normed, other)
        with jax.named_scope("add1"):
            x = x + self._added(
                jax.checkpoint(self.attention_norm)(mixed) if self.post_norms else mixed
            )
        with jax.named_scope("router" if self.sparse else "up"):
            normed = jax.checkpoint(self.norm2)(x) if self.pre_norms else x
        output = self.moe(normed)[0] if self.sparse else self.mlp(normed)
        with jax.named_scope("add2"):
            x = x + self._added(
                jax.checkpoint(self.mlp_norm)(output) if self.post_norms else output
            )
        return x, None

    def _added(self, output: Hidden) -> Hidden:
        return output if self.factor == 1 else output * self.factor


class LayerGroup(nnx.Module):
    """Several attention layers, of which the last has no window, and perhaps no positions.

    Args:
        config: the sizes and the variant.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.parts = config.parts
        *local, full = config.parts
        for part in local:
            block = LlamaBlock(config, window=config.window, positions=config.local, rngs=rngs)
            setattr(self, part, block)
        positions = None if config.unturned else config
        setattr(self, full, LlamaBlock(config, window=0, positions=positions, rngs=rngs))

    def __call__(
        self, x: Hidden, key: Key[Array, ""] | None, other: CachedAttention | None = None
    ) -> tuple[Hidden, None]:
        """Return the residual stream after all, which add nothing to the loss."""
        for part in self.parts:
            with jax.named_scope(part):
                x, _ = getattr(self, part)(x, key, other)
        return x, None


def llama_layer(config: LlamaConfig, *, rngs: nnx.Rngs) -> LlamaBlock | LayerGroup:
    """Return the layer that stages count: a group where windows alternate."""
    if config.alternating:
        return LayerGroup(config, rngs=rngs)
    positions = None if config.unturned and not config.full_layers else config
    return LlamaBlock(config, window=config.window, positions=positions, rngs=rngs)


class TokenEmbedding(nnx.Module):
    """The vector of each token; positions enter in attention.

    Args:
        config: the sizes, and whether vectors are multiplied by the root of the width.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.tokens = table(config.vocabulary, config.dim, rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch seq"],
        key: Key[Array, ""] | None,
        places: Int[Array, "batch seq"] | None = None,
    ) -> Hidden:
        """Return the input of the first layer; nothing is dropped, and no place is read."""
        del key, places
        config = self.config
        vectors = look_up(self.tokens[...], tokens, sequence=config.sequence)
        x = vectors.astype(config.compute_dtype)
        # The factor is rounded to the format of computation first, as where Gemma was trained.
        if config.scaled_embedding:
            x = x * jnp.asarray(config.dim**0.5, x.dtype)
        if config.embedding_factor != 1:
            x = x * jnp.asarray(config.embedding_factor, x.dtype)
        return x


def llama_head(config: LlamaConfig, *, rngs: nnx.Rngs) -> Head:
    """Return the head: RMSNorm, then the logits of all tokens."""
    norm = RmsNorm(config, config.dim, rngs=rngs, divisor=config.logits_divisor)
    kernel = None if config.tied else table(config.vocabulary, config.dim, rngs)
    return Head(norm, kernel, logits_bytes=config.logits_bytes, softcap=config.final_softcap)
