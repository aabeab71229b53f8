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
from types import MappingProxyType
from typing import Final

from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.bottleneck import draw_bottlenecks, narrow, widen
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.transformer import INIT_STD, Hidden, Parameters, Parts, Transformer

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
        from jaxpipe.models.gpt_modules import DenseAndExperts, Embedding, GptBlock, gpt_head
        from jaxpipe.models.patches import Patches

        return Parts(
            embedding=Patches if self.config.patch else Embedding,
            block=DenseAndExperts if self.config.experts else GptBlock,
            head=gpt_head,
        )
