"""A decoder of the Llama type that can be partitioned between any two layers.

::

    x ─┬─ norm1 ─ qkv ─ turn ─ attention ─ project ─ (norm) ─ + ─┬─ norm2 ─ MLP ─ (norm) ─ + ─
       └──────────────────────────────────────────────────────┘  └──────────────────────────┘

    MLP:  ─┬─ gate ─ SiLU or GELU ─ * ─ down ─     or experts, each such an MLP
           └─ up ───────────────────┘

Outside, parameters are nested dicts of arrays; inside, they become NNX modules::

    {"embed":  {"tokens":    (vocabulary, dim)},
     "blocks": {"norm1":     {"scale": (layers, dim)},
                "attention": {"query":   {"kernel": (layers, dim, heads * width), "bias"},
                              "key":     {"kernel": (layers, dim, kv_heads * width), "bias"},
                              "value":   {"kernel": (layers, dim, kv_heads * width), "bias"},
                              "project": {"kernel": (layers, heads * width, dim), "bias"},
                              "query_norm", "key_norm": {"scale": (layers, width or all heads)}},
                "norm2":     {"scale": (layers, dim)},
                "mlp":       {"gate", "up": {"kernel": (layers, dim, hidden), "bias"},
                              "down":       {"kernel": (layers, hidden, dim), "bias"}},
                "attention_norm", "mlp_norm": {"scale": (layers, dim)}},
     "head":   {"norm":      {"scale": (dim,)},
                "kernel":    (vocabulary, dim), unless tied}}

Biases and norms are optional, but for the head's norm. With experts, "moe" stands in place of
"mlp"::

    {"router": (layers, dim, experts), "gate", "up": (layers, experts, dim, hidden),
     "down": (layers, experts, hidden, dim)}

Where windows alternate, a layer is a group, and "blocks" has the parts "local", "local2" and so on,
and "full", each as above. Where full layers lie anywhere (`full_layers`), all layers have the same
parameters, and `Llama.of_layer` is the model that computes one of them.

What the backward keeps is chosen as in `jaxpipe.models.gpt`: the inputs of norms, rotations and
gates, not what is computed inside of them; `jaxpipe.models.llama_costs` counts it.

Source: Touvron et al. 2023, "LLaMA", section 2.2; RMSNorm: Zhang and Sennrich 2019, "Root Mean
Square Layer Normalization", equation 4; the norms in parentheses: Gemma Team 2024, "Gemma 2",
section 2; the scaled embedding: Gemma Team 2024, "Gemma", and its published code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_split import split_of
from jaxpipe.models.transformer import Parts, Transformer


@dataclass(frozen=True, slots=True)
class Llama(Transformer):
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
    def switch_length(self) -> int:
        """The longest text with the rotary positions of short ones; 0 where they do not differ."""
        return self.config.switch_length

    @property
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits: heads, hidden, vocabulary."""
        split = split_of(self.config.parts)
        if not self.config.experts:
            return split
        # Each device has all experts: rows of them at run time divide over none.
        return {name: dim for name, dim in split.items() if ".mlp." not in name}

    def of_layer(self, number: int) -> "Llama":
        """Return the model whose layers all are as the one of this number."""
        return self if not self.config.full_layers else _uniform(self.config.of_layer(number))

    def _parts(self) -> Parts:
        from jaxpipe.models.llama_modules import TokenEmbedding, llama_head, llama_layer

        return Parts(embedding=TokenEmbedding, block=llama_layer, head=llama_head)


@lru_cache(maxsize=64)  # of a model whose layers differ, each kind is asked for by each layer
def _uniform(config: LlamaConfig) -> Llama:
    return Llama(config)
