"""A GPT, or an encoder, that can be partitioned between any two layers, as pure functions.

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

With experts, a layer is a pair (`jaxpipe.models.moe.pair`), and "blocks" has the parts "dense", as
above, and "sparse", in which "moe" stands in place of "mlp"::

    {"router": (layers, dim, experts), "up": (layers, experts, dim, hidden),
     "down": (layers, experts, hidden, dim)}

With classes, the head's kernel has a row per class; with patches, "embed" is that of
`jaxpipe.models.patches`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from flax import nnx
from jaxtyping import Array, Float, Int, Integer, Key

from jaxpipe.models.assembled import Assembled
from jaxpipe.models.cached_attention import CachedAttention
from jaxpipe.models.ends import Embedding, gpt_head
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.layers import Block
from jaxpipe.models.moe.pair import Pair
from jaxpipe.models.parts import Parameters, Parts
from jaxpipe.models.patches import Patches
from jaxpipe.models.placed_attention import Places, placed_attention

Inputs: TypeAlias = Int[Array, "batch seq"] | Integer[Array, "batch height width channels"]

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
class Gpt(Assembled):
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

    def embed(
        self,
        params: Parameters,
        inputs: Inputs,
        key: Key[Array, ""] | None,
        positions: Int[Array, "batch seq"] | None = None,
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer, in `compute_dtype`; no key, no dropout.

        A token outside the vocabulary makes its row NaN. Tokens are at `positions`, by default
        counted from 0 in each text; pictures have none.

        Raises:
            ValueError: there are more tokens than `sequence`, or pictures have another shape.
        """
        embedding = nnx.merge(self._embedding, params["embed"])
        if positions is None:
            return embedding(inputs, key)
        return embedding(inputs, key, positions)

    def block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"] | tuple[Float[Array, "batch seq dim"], Float[Array, ""]]:
        """Apply one layer, given one slice of `params["blocks"]`; no key, no dropout.

        If its router has auxiliary losses, return a pair of the output and their sum.
        """
        return nnx.merge(self._block, layer)(x, key)

    def cached_block(
        self, layer: Parameters, x: Float[Array, "batch seq dim"], cached: CachedAttention
    ) -> Float[Array, "batch seq dim"]:
        """Apply one layer with another attention (`jaxpipe.models.decoder`)."""
        return nnx.merge(self._block, layer)(x, None, cached)

    def placed_embed(
        self,
        params: Parameters,
        inputs: Int[Array, "batch seq"],
        key: Key[Array, ""] | None,
        places: Places,
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer, of tokens that do not lie in a row."""
        return self.embed(params, inputs, key, places.positions)

    def placed_block(
        self,
        layer: Parameters,
        x: Float[Array, "batch seq dim"],
        key: Key[Array, ""] | None,
        places: Places,
    ) -> Float[Array, "batch seq dim"]:
        """Apply one layer to tokens that do not lie in a row."""
        assert not self.config.experts, "configurations refuse it: texts would share a capacity"
        return nnx.merge(self._block, layer)(x, key, placed_attention(places))

    def _parts(self) -> Parts:
        return Parts(
            embedding=Patches if self.config.patch else Embedding,
            block=Pair if self.config.experts else Block,
            head=gpt_head,
        )
