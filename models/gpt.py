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
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from flax import nnx
from jaxtyping import Array, Float, Int, Integer, Key

from jaxpipe.models.cached_attention import CachedAttention
from jaxpipe.models.ends import Embedding, Head, gpt_head
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.layers import Block
from jaxpipe.models.moe.pair import Pair
from jaxpipe.models.parts import Parameters, Parts, graph
from jaxpipe.models.patches import Patches
from jaxpipe.models.placed_attention import Places, placed_attention

Inputs: TypeAlias = Int[Array, "batch seq"] | Integer[Array, "batch height width channels"]
Targets: TypeAlias = Int[Array, "batch seq"] | Int[Array, " batch"]

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
class Gpt:
    """A GPT of the size of `config`; it holds no parameters.

    Parameters may come in `param_dtype`, or already cast to `compute_dtype`. Cast ahead, once a
    step: the residuals of a jitted `jax.vjp` then hold no second copy of the kernels.

    >>> import jax
    >>> config = GptConfig(num_layers=4, dim=8, num_heads=2, sequence=16, vocabulary=256)
    >>> gpt = Gpt(config)
    >>> params = gpt.init(jax.random.key(0), layers=range(2, 4), embed=False, head=True)
    >>> sorted(params), params["blocks"]["mlp"]["up"]["kernel"].shape
    (['blocks', 'embed', 'head'], (2, 8, 32))
    """

    config: GptConfig
    # Derived from `config`: no part of equality or of the hash, which `jit` needs.
    _embedding: nnx.GraphDef[Any] = field(init=False, repr=False, compare=False)
    _block: nnx.GraphDef[Any] = field(init=False, repr=False, compare=False)
    _head: nnx.GraphDef[Head] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = _parts(self.config)
        object.__setattr__(self, "_embedding", graph(parts.embedding, self.config))
        object.__setattr__(self, "_block", graph(parts.block, self.config))
        object.__setattr__(self, "_head", graph(parts.head, self.config))

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model; with experts, of pairs."""
        return self.config.num_layers

    @property
    def sequence(self) -> int:
        """The longest sequence, in tokens."""
        return self.config.sequence

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return self.config.vocabulary

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding."""
        return self.config.tied

    @property
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits: heads, hidden, vocabulary.

        Other parameters are replicated, also the bias of qkv, because it is small.
        """
        return SPLIT_PAIRS if self.config.experts else SPLIT

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters, as `Parts.init` draws them."""
        return _parts(self.config).init(self.config, key, layers=layers, embed=embed, head=head)

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

    def head(
        self, params: Parameters, x: Float[Array, "batch seq dim"]
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits, in float32."""
        return nnx.merge(self._head, params["head"])(x, self._tied_tokens(params))

    def loss(
        self,
        params: Parameters,
        x: Float[Array, "batch seq dim"],
        targets: Targets,
    ) -> Float[Array, ""]:
        """Return the cross-entropy of the head in nats, summed over all targets, in float32.

        A target outside the vocabulary makes it NaN.
        """
        head = nnx.merge(self._head, params["head"])
        return head.loss(x, self._tied_tokens(params), targets)

    def _tied_tokens(self, params: Parameters) -> Float[Array, "vocabulary dim"] | None:
        return params["embed"]["tokens"] if self.tied else None


def _parts(config: GptConfig) -> Parts:
    return Parts(
        embedding=Patches if config.patch else Embedding,
        block=Pair if config.experts else Block,
        head=gpt_head,
    )
