"""A decoder of the Llama type that can be partitioned between any two layers, as pure functions.

Outside, parameters are nested dicts of arrays; inside, they become NNX modules::

    {"embed":  {"tokens":    (vocabulary, dim)},
     "blocks": {"norm1":     {"scale": (layers, dim)},
                "attention": {"query":   {"kernel": (layers, dim, heads * width), "bias"},
                              "key":     {"kernel": (layers, dim, kv_heads * width), "bias"},
                              "value":   {"kernel": (layers, dim, kv_heads * width), "bias"},
                              "project": {"kernel": (layers, heads * width, dim), "bias"},
                              "query_norm", "key_norm": {"scale": (layers, width)}},
                "norm2":     {"scale": (layers, dim)},
                "mlp":       {"gate", "up": {"kernel": (layers, dim, hidden), "bias"},
                              "down":       {"kernel": (layers, hidden, dim), "bias"}},
                "attention_norm", "mlp_norm": {"scale": (layers, dim)}},
     "head":   {"norm":      {"scale": (dim,)},
                "kernel":    (vocabulary, dim), unless tied}}

Biases and some norms are optional. Where windows alternate, a layer is a pair, and "blocks" has the
parts "local" and "full", each as above.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.assembled import Assembled
from jaxpipe.models.cached_attention import CachedAttention
from jaxpipe.models.llama.block import layer
from jaxpipe.models.llama.ends import TokenEmbedding, llama_head
from jaxpipe.models.llama.llama_config import LlamaConfig
from jaxpipe.models.parts import Parameters, Parts
from jaxpipe.models.placed_attention import Places, placed_attention

_COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
_ROWS = ("attention.project", "mlp.down")

_SPLIT_LAYER: Final = MappingProxyType(
    {
        **{f"{name}.{leaf}": -1 for name in _COLUMNS for leaf in ("kernel", "bias")},
        **{f"{name}.kernel": -2 for name in _ROWS},
    }
)
_SPLIT_ENDS: Final = MappingProxyType({"embed.tokens": -2, "head.kernel": -2})

SPLIT: Final = MappingProxyType(
    {**_SPLIT_ENDS, **{f"blocks.{name}": dim for name, dim in _SPLIT_LAYER.items()}}
)
"""What writes to the middle of a layer is split by columns, what reads from there by rows.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

SPLIT_PAIRS: Final = MappingProxyType(
    {
        **_SPLIT_ENDS,
        **{
            f"blocks.{part}.{name}": dim
            for part in ("local", "full")
            for name, dim in _SPLIT_LAYER.items()
        },
    }
)
"""The same where windows alternate."""


@dataclass(frozen=True, slots=True)
class Llama(Assembled):
    """A decoder of the size and variant of `config`; it holds no parameters.

    >>> import jax
    >>> config = LlamaConfig(
    ...     num_layers=4, dim=8, num_heads=2, num_kv_heads=1, hidden=12, sequence=16,
    ...     vocabulary=256,
    ... )
    >>> llama = Llama(config)
    >>> params = llama.init(jax.random.key(0), layers=range(2, 4), embed=False, head=True)
    >>> sorted(params), params["blocks"]["mlp"]["up"]["kernel"].shape
    (['blocks', 'head'], (2, 8, 12))
    """

    config: LlamaConfig

    @property
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits: heads, hidden, vocabulary."""
        return SPLIT_PAIRS if self.config.alternating else SPLIT

    def embed(
        self, params: Parameters, inputs: Int[Array, "batch seq"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer, in `compute_dtype`; `key` is not used.

        A token outside the vocabulary makes its row NaN.

        Raises:
            ValueError: there are more tokens than `sequence`.
        """
        del key
        return nnx.merge(self._embedding, params["embed"])(inputs)

    def block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Apply one layer, given one slice of `params["blocks"]`; `key` is not used."""
        del key
        return nnx.merge(self._block, layer)(x)

    def cached_block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], cached: CachedAttention
    ) -> Float[Array, "batch seq dim"]:
        """Apply one layer with another attention (`jaxpipe.models.decoder`)."""
        return nnx.merge(self._block, layer)(x, cached)

    def placed_embed(
        self,
        params: Parameters,
        inputs: Int[Array, "batch seq"],
        key: Key[Array, ""] | None,
        places: Places,
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer, which knows no places."""
        del places
        return self.embed(params, inputs, key)

    def placed_block(
        self,
        layer: Parameters,
        x: Float[Array, "batch seq dim"],
        key: Key[Array, ""] | None,
        places: Places,
    ) -> Float[Array, "batch seq dim"]:
        """Apply one layer to tokens that do not lie in a row."""
        del key
        return nnx.merge(self._block, layer)(x, placed_attention(places))

    def _parts(self) -> Parts:
        return Parts(embedding=TokenEmbedding, block=layer, head=llama_head)
