"""The GPT of Alpa's published benchmark: post-LN, untied, all of it matrix products.

::

    tokens ─ one-hot @ table ─ + ─ norm ─┬─ qkv, attention, project ─ + ─ norm ─┬─ MLP ─ + ─ norm ─
    places ─ one-hot @ table ─┘          └────────────────────────────┘         └────────┘

What is uncommon about it, and kept because collectives and memory depend on it: the norm comes
after the shortcut, so that a layer computed again needs all of its products; only `POSITIONS`
places are learned, and tokens beyond them get none; the columns of qkv belong to a head first, then
to query, key or value, so that a split by columns is one by heads; the head is untied and has a
bias.

Targets below 0 are left out of the loss. There is no dropout.

Source: Zheng et al. 2022, "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed
Deep Learning", section 8.1, and the model of its public benchmark.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig

Parameters: TypeAlias = dict[str, Any]

POSITIONS: Final = 512
"""The maximum number of learned positions: the default of the model that Alpa's is based on."""

INIT_STD: Final = 0.02
EPSILON: Final = 1e-5

SPLIT: Final = MappingProxyType(
    {
        "embed.tokens": -2,
        "blocks.attention.qkv.kernel": -1,
        "blocks.attention.qkv.bias": -1,
        "blocks.attention.project.kernel": -2,
        "blocks.mlp.up.kernel": -1,
        "blocks.mlp.up.bias": -1,
        "blocks.mlp.down.kernel": -2,
        "head.kernel": -1,
        "head.bias": -1,
    }
)
"""Kernels into the middle of a layer are split by columns, kernels out of it by rows."""


@dataclass(frozen=True, slots=True)
class AlpaGpt:
    """Alpa's GPT of the size of `config`, which must be untied; it holds no parameters.

    Raises:
        ValueError: `config` is tied or has dropout.

    >>> config = GptConfig(
    ...     num_layers=1, dim=8, num_heads=2, sequence=4, vocabulary=16, tied=False
    ... )
    >>> params = AlpaGpt(config).init(jax.random.key(0), layers=range(1), embed=True, head=True)
    >>> sum(leaf.size for leaf in jax.tree.leaves(params)) == num_parameters(config)
    True
    """

    config: GptConfig

    def __post_init__(self) -> None:
        if self.config.tied:
            raise ValueError("`tied` must be false: the head of Alpa's GPT has a table of its own")
        if self.config.dropout:
            raise ValueError(f"`dropout` must be 0, not {self.config.dropout}: Alpa's GPT has none")

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model."""
        return self.config.num_layers

    @property
    def sequence(self) -> int:
        """The longest sequence, in tokens; see `POSITIONS`."""
        return self.config.sequence

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return self.config.vocabulary

    @property
    def tied(self) -> bool:
        """False."""
        return False

    @property
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits; others are replicated."""
        return SPLIT

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters, in `param_dtype`, of consecutive layers and of the ends asked.

        Each leaf depends on `key` and on its own layer's number alone.
        """
        dim, config = self.config.dim, self.config
        params: Parameters = {}
        if embed:
            tokens, positions = jax.random.split(jax.random.fold_in(key, 0))
            params["embed"] = {
                "tokens": self._normal(tokens, (config.vocabulary, dim)),
                "positions": self._normal(positions, (num_positions(config), dim)),
                "norm": self._norm(),
            }
        if layers:
            drawn = [self._layer(jax.random.fold_in(key, 2 + number)) for number in layers]
            params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
        if head:
            params["head"] = self._dense(jax.random.fold_in(key, 1), dim, config.vocabulary)
        return params

    def embed(
        self, params: Parameters, tokens: Int[Array, "batch seq"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer, in `compute_dtype`; `key` is not used."""
        del key
        part = params["embed"]
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        x = self._looked_up(part["tokens"], tokens) + self._looked_up(part["positions"], places)
        return self._normed(part["norm"], x)

    def block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Apply one layer; `key` is not used."""
        del key
        x = self._normed(layer["norm1"], x + self._attention(layer["attention"], x))
        hidden = jax.nn.gelu(self._times(layer["mlp"]["up"], x))
        return self._normed(layer["norm2"], x + self._times(layer["mlp"]["down"], hidden))

    def head(
        self, params: Parameters, x: Float[Array, "batch seq dim"]
    ) -> Float[Array, "batch seq vocabulary"]:
        """Return the logits, in float32."""
        return self._times(params["head"], x).astype(jnp.float32)

    def loss(
        self,
        params: Parameters,
        x: Float[Array, "batch seq dim"],
        targets: Int[Array, "batch seq"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy in nats, summed over the targets that are not negative."""
        logits = self.head(params, x)
        # A comparison, not a look-up: where the vocabulary is split, each device compares its part.
        is_target = targets[..., None] == jnp.arange(self.vocabulary)
        of_target = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
        lost = jax.nn.logsumexp(logits, axis=-1) - of_target
        return jnp.sum(jnp.where(targets >= 0, lost, 0))

    def _attention(self, params: Parameters, x: Array) -> Array:
        batch, seq, dim = x.shape
        heads = self.config.num_heads
        qkv = self._times(params["qkv"], x).reshape(batch, seq, heads, 3, dim // heads)
        q, k, v = (qkv[:, :, :, index] for index in range(3))
        # Queries are scaled first: in float16, unscaled scores may overflow.
        scores = jnp.einsum("bqhd,bkhd->bhqk", q * (1 / math.sqrt(dim // heads)), k)
        before = jnp.arange(seq)[:, None] >= jnp.arange(seq)
        # -1e4, not -1e9: float16 ends at 65504.
        weights = jax.nn.softmax(jnp.where(before, scores, -1e4), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return self._times(params["project"], mixed.reshape(batch, seq, dim))

    def _times(self, params: Parameters, x: Array) -> Array:
        dtype = self.config.compute_dtype
        return x.astype(dtype) @ params["kernel"].astype(dtype) + params["bias"].astype(dtype)

    def _looked_up(self, table: Array, numbers: Array) -> Array:
        dtype = self.config.compute_dtype
        # A position beyond the table equals no row, and gets a vector of 0.
        one_hot = (numbers[..., None] == jnp.arange(len(table))).astype(dtype)
        return one_hot @ table.astype(dtype)

    def _normed(self, params: Parameters, x: Array) -> Array:
        # Statistics in float32: squares of float16 overflow above 255.
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + EPSILON)
        scaled = centred * inverse * params["scale"].astype(jnp.float32)
        return (scaled + params["bias"].astype(jnp.float32)).astype(self.config.compute_dtype)

    def _layer(self, key: Key[Array, ""]) -> Parameters:
        dim, hidden = self.config.dim, self.config.hidden
        keys = jax.random.split(key, 4)
        return {
            "attention": {
                "qkv": self._dense(keys[0], dim, 3 * dim),
                "project": self._dense(keys[1], dim, dim),
            },
            "norm1": self._norm(),
            "mlp": {
                "up": self._dense(keys[2], dim, hidden),
                "down": self._dense(keys[3], hidden, dim),
            },
            "norm2": self._norm(),
        }

    def _dense(self, key: Key[Array, ""], rows: int, columns: int) -> Parameters:
        bias = jnp.zeros(columns, self.config.param_dtype)
        return {"kernel": self._normal(key, (rows, columns)), "bias": bias}

    def _norm(self) -> Parameters:
        dim, dtype = self.config.dim, self.config.param_dtype
        return {"scale": jnp.ones(dim, dtype), "bias": jnp.zeros(dim, dtype)}

    def _normal(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
        return (INIT_STD * jax.random.normal(key, shape)).astype(self.config.param_dtype)


def num_positions(config: GptConfig) -> int:
    """Return the number of learned positions."""
    return min(POSITIONS, config.sequence)


_ALIKE_WIDTHS, _SHARED_WIDTHS = 6, 50


def num_parameters(config: GptConfig) -> int:
    """Return the number of parameters of the whole model, in closed form."""
    dim = config.dim
    tables = 2 * config.vocabulary * dim + config.vocabulary
    ends = tables + num_positions(config) * dim + 2 * dim
    # Kernels 3 + 1 + 4 + 4, biases 3 + 1 + 4 + 1, two norms of 2 each.
    return config.num_layers * (12 * dim + 13) * dim + ends


def step_flops(config: GptConfig, *, batch: int, remat: bool) -> float:
    """Return the FLOP of a step as Alpa counts them, over all devices.

    >>> config = GptConfig(
    ...     num_layers=4, dim=4096, num_heads=32, sequence=1024, vocabulary=51200, tied=False
    ... )
    >>> print(f"{step_flops(config, batch=4, remat=True) / 0.142 / 1e12:.1f} TFLOPS")
    229.9 TFLOPS
    """
    tokens = batch * config.sequence
    # Narayanan et al. 2021: 24 forward, x 3 with the backward, x 4 with recomputation.
    layers = config.num_layers * config.dim**2 * (1 + config.sequence / (6 * config.dim))
    # The head, 2 x 3, is not recomputed.
    return tokens * ((72 + 24 * remat) * layers + 6 * config.dim * config.vocabulary)


def step_memory_bytes(
    config: GptConfig,
    *,
    batch: int,
    dp: int = 1,
    op: int = 1,
    remat: bool = False,
    reduce_scatter: bool = False,
) -> float:
    """Return the bytes that a device of dp x op moves through its memory, besides products' own.

    The optimizer: 28 bytes a parameter (gradient, master copy and Adam's moments in, the same and
    the parameter out). And what is computed element by element: once forward, twice backward, once
    more with `remat`, over 6 widths a layer that all devices of op repeat and 50 that they share.
    A model of `experiments/alpa_gpt`, whose form was chosen to fit the published times.
    """
    width = DTYPE_BYTES[config.compute_dtype]
    params = num_parameters(config) / op
    optimizer = 28 * params
    if reduce_scatter:
        optimizer = optimizer / dp + 2 * width * params
    widths = (_ALIKE_WIDTHS + _SHARED_WIDTHS / op) * (3 + remat) * width
    return optimizer + batch / dp * config.sequence * config.dim * config.num_layers * widths
