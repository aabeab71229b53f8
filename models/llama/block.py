"""The layer of a decoder of the Llama type: attention, then a gated MLP, each with a residual.

::

    x ─┬─ norm1 ─ qkv ─ turn ─ attention ─ project ─ (norm) ─ + ─┬─ norm2 ─ MLP ─ (norm) ─ + ─
       └──────────────────────────────────────────────────────┘  └──────────────────────────┘

    MLP:  ─┬─ gate ─ SiLU or GELU ─ * ─ down ─
           └─ up ───────────────────┘

What the backward keeps is chosen as in `jaxpipe.models.layers`: the inputs of norms, rotations and
gates, not what is computed inside of them; `jaxpipe.models.llama.llama_costs` counts it.

Source: Touvron et al. 2023, "LLaMA", section 2.2; the norms in parentheses: Gemma Team 2024,
"Gemma 2", section 2.
"""

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxpipe.models.attention import grouped_attention
from jaxpipe.models.cached_attention import CachedAttention
from jaxpipe.models.layers import INIT_STD, by_token, gathered, residual_init_std
from jaxpipe.models.llama.llama_config import Activation, LlamaConfig
from jaxpipe.models.llama.rms_norm import RmsNorm
from jaxpipe.models.llama.rope_frequencies import frequencies
from jaxpipe.models.llama.rotary import rotate
from jaxpipe.models.scores import Scores

Hidden = Float[Array, "batch seq dim"]


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


class Attention(nnx.Module):
    """Causal attention with rotary positions, in which groups of heads share keys and values.

    Args:
        config: the sizes and the variant.
        window: how many tokens a token reads at most; 0 for all.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: LlamaConfig, *, window: int, rngs: nnx.Rngs) -> None:
        self.config = config
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
            self.query_norm = RmsNorm(config, config.width, rngs=rngs)
            self.key_norm = RmsNorm(config, config.width, rngs=rngs)

    def __call__(self, x: Hidden, cached: CachedAttention | None = None) -> Hidden:
        """Return the attention output of each token, of `cached` if it is given."""
        batch, seq, _ = x.shape
        positions = None if cached is None else cached.positions
        normed = self.config.qk_norm
        with jax.named_scope("qkv"):
            heads = (batch, seq, -1, self.config.width)
            q, k, v = (each.reshape(heads) for each in by_token(self._products, x))
            q = self._turned(q, self.query_norm if normed else None, positions)
            k = self._turned(k, self.key_norm if normed else None, positions)
        attend = grouped_attention if cached is None else cached
        with jax.named_scope("attention"):
            mixed = attend(q, k, v, form=self.config.attention, scores=self.scores)
        with jax.named_scope("project"):
            return gathered(self.project(mixed)).reshape(x.shape)

    def _products(self, flat: Float[Array, "tokens dim"]) -> tuple[Array, Array, Array]:
        return self.query(flat), self.key(flat), self.value(flat)

    def _turned(self, heads: Array, norm: RmsNorm | None, positions: Array | None) -> Array:
        angles = frequencies(self.config)

        # Keeps its input, and without a norm nothing: a rotation is linear.
        @jax.checkpoint
        def turn(heads: Array) -> Array:
            return rotate(heads if norm is None else norm(heads), angles, positions)

        return turn(heads)


class Mlp(nnx.Module):
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
        with jax.named_scope("down"):
            return gathered(self.down(jax.checkpoint(self._gated)(gate, up))).reshape(x.shape)

    def _gated(self, gate: Array, up: Array) -> Array:
        if self.activation is Activation.SILU:
            return jax.nn.silu(gate) * up
        return jax.nn.gelu(gate, approximate=True) * up


class Block(nnx.Module):
    """One attention layer with its MLP.

    Args:
        config: the sizes and the variant.
        window: how many tokens a token reads at most; 0 for all.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: LlamaConfig, *, window: int, rngs: nnx.Rngs) -> None:
        norm = partial(RmsNorm, config, config.dim, rngs=rngs)
        self.post_norms = config.post_norms
        self.norm1 = norm()
        self.attention = Attention(config, window=window, rngs=rngs)
        self.norm2 = norm()
        self.mlp = Mlp(config, rngs=rngs)
        if config.post_norms:
            self.attention_norm = norm()
            self.mlp_norm = norm()

    def __call__(self, x: Hidden, cached: CachedAttention | None = None) -> Hidden:
        """Return the residual stream after the layer."""
        with jax.named_scope("qkv"):
            normed = jax.checkpoint(self.norm1)(x)
        mixed = self.attention(normed, cached)
        with jax.named_scope("add1"):
            x = x + (jax.checkpoint(self.attention_norm)(mixed) if self.post_norms else mixed)
        with jax.named_scope("up"):
            normed = jax.checkpoint(self.norm2)(x)
        output = self.mlp(normed)
        with jax.named_scope("add2"):
            return x + (jax.checkpoint(self.mlp_norm)(output) if self.post_norms else output)


class Pair(nnx.Module):
    """Two attention layers, the first with the window and the second without.

    Args:
        config: the sizes and the variant.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.local = Block(config, window=config.window, rngs=rngs)
        self.full = Block(config, window=0, rngs=rngs)

    def __call__(self, x: Hidden, cached: CachedAttention | None = None) -> Hidden:
        """Return the residual stream after both."""
        with jax.named_scope("local"):
            x = self.local(x, cached)
        with jax.named_scope("full"):
            return self.full(x, cached)


def layer(config: LlamaConfig, *, rngs: nnx.Rngs) -> Block | Pair:
    """Return the layer that stages count: a pair where windows alternate."""
    if config.alternating:
        return Pair(config, rngs=rngs)
    return Block(config, window=config.window, rngs=rngs)
