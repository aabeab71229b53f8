"""The size, the variant and the number formats of a decoder of the Llama type; without jax.

::

    Llama 3    SwiGLU, rotary positions with Llama-3 scaling
    Mistral    + `window`
    Phi 3      + `rotary_width`
    Qwen 2     + `qkv_bias`
    Qwen 3     + `qk_norm`
    OLMo 2     `post_norms` without `pre_norms`, `qk_norm` with `wide_qk_norm`
    Granite    `embedding_factor`, `residual_factor`, `logits_divisor`, `query_scale`
    Gemma      GeGLU, `norm_offset`, `scaled_embedding`
    Gemma 2    + `alternating` windows, both soft caps, `post_norms`, `query_scale`
    Gemma 3    as Gemma 2 without soft caps, with `period` 6, `local_base` and `qk_norm`
    SmolLM 3   `alternating` with `period` 4 and `unturned`
    Mixtral    `experts` with `normalised_gates`
    Qwen 3 MoE `qk_norm` and `experts`

Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models"; Jiang et al. 2023, "Mistral 7B"; Yang
et al. 2024, "Qwen2 Technical Report"; Yang et al. 2025, "Qwen3 Technical Report"; Gemma Team 2024,
"Gemma 2"; Abdin et al. 2024, "Phi-3 Technical Report"; OLMo Team 2024, "2 OLMo 2 Furious"; IBM
Research 2024, "Granite 3.0 Language Models"; Gemma Team 2025, "Gemma 3 Technical Report"; Bakouch
et al. 2025, "SmolLM3"; Jiang et al. 2024, "Mixtral of Experts".
"""

from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.llama_checks import check_llama
from jaxpipe.models.moe.routing import Dispatch, Routing
from jaxpipe.models.rope_scaling import RopeScaling


class Activation(StrEnum):
    """The activation of the gate of an MLP.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", section 2.
    """

    SILU = "silu"
    """x sigmoid(x): the MLP is SwiGLU."""
    GELU_TANH = "gelu_tanh"
    """GELU in its tanh form: the MLP is GeGLU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Describe a decoder of the Llama type.

    With `alternating`, layers come in groups of `period`, of which the last one is full; a group is
    one layer for `num_layers` and for plans, so that all layers are equal. With `full_layers`, full
    layers lie anywhere, and each is one for plans. Full layers have no window, nor the base of
    the others.

    Args:
        family: "llama": what distinguishes the section from that of a GPT.
        num_layers: number of layers between the embedding and the head, with `alternating` of
            groups [layers].
        dim: the width of the residual stream.
        num_heads: attention heads per layer [heads]; a multiple of `num_kv_heads`.
        num_kv_heads: heads of keys and values per layer [heads].
        head_width: the width of a head, an even number; 0 for `dim` / `num_heads`.
        hidden: the width of the MLP's middle, or of each expert's.
        experts: the MLPs of a layer, of which a token takes some (mixture of experts), without a
            limit of tokens for one; 0 for one MLP, which all tokens take.
        experts_per_token: how many of them a token takes.
        normalised_gates: whether their gates sum to 1; else they are the probabilities.
        sequence: the longest sequence [tokens].
        vocabulary: number of different tokens [tokens].
        tied: whether the head multiplies by the token embedding (tied embedding).
        activation: the activation of the gate.
        norm_epsilon: added to the mean square in RMSNorm.
        norm_offset: whether a norm multiplies by 1 + its parameter, which begins as 0.
        pre_norms: whether the inputs of attention and MLP are normalised.
        post_norms: whether the outputs of attention and MLP are normalised.
        qk_norm: whether queries and keys are normalised, head by head.
        wide_qk_norm: whether they are normalised over all heads together instead.
        qkv_bias: whether queries, keys and values have biases.
        project_bias: whether the output of attention has one.
        mlp_bias: whether the three products of the MLP have biases.
        scaled_embedding: whether the embedding is multiplied by the root of `dim`.
        embedding_factor: factor of the embedding.
        residual_factor: factor of the outputs of attention and MLP.
        logits_divisor: what the logits are divided by.
        window: how many tokens a token reads at most, itself and the ones before it; 0 for all.
        alternating: whether the last layer of each group is full.
        period: the layers of a group; 2 for every other layer [layers].
        full_layers: the numbers of the full layers, counted from 0, where they are not the last
            ones of groups.
        local_base: base of rotary positions, which are not scaled, in the layers with the window; 0
            for those of the others.
        unturned: whether full layers have no positions (NoPE); all layers, where they are equal.
        attention_softcap: soft bound of the scores; 0 for none.
        final_softcap: soft bound of the logits; 0 for none.
        query_scale: scores are divided by the root of it; 0 for the width of a head.
        rotary_width: the first numbers of a head that rotary positions turn, an even number; 0 for
            all.
        rope_base: base of the frequencies of rotary positions.
        rope_scaling: how they reach beyond the sequences of pretraining.
        rope_factor: the factor of `rope_scaling`.
        rope_low: of Llama-3 and YaRN scaling, the turns within `rope_sequence` below which a
            frequency is low.
        rope_high: the turns above which it is high.
        rope_sequence: the longest sequence of pretraining [tokens].
        rope_magnitude: of YaRN and LongRoPE scaling, the factor of turned queries and keys; 0 for
            that of `rope_factor`.
        rope_truncate: of YaRN scaling, whether the ends of the ramp are rounded outwards to whole
            numbers.
        rope_short: of LongRoPE scaling, what each frequency is divided by in texts up to
            `rope_sequence` tokens.
        rope_long: the same in longer texts.
        param_dtype: format of fresh parameters, one of `DTYPE_BYTES`.
        compute_dtype: format of activations and of the operands of matrix products, one of
            `DTYPE_BYTES`. Statistics, softmax, logits and loss are float32 whatever it is.
        attention: kernel that computes attention.
        logits_bytes: memory that the logits of a microbatch may take in training [bytes]; larger
            logits are computed in chunks of tokens, and again in the backward.

    Raises:
        ValueError: a size below 1 or above what a model has, heads that are no equal groups, an odd
            width of a head, an unknown format, a window or a scaling without its numbers, or a
            fused kernel asked for bounded scores.

    >>> config = LlamaConfig(
    ...     num_layers=2, dim=64, num_heads=4, num_kv_heads=2, hidden=128, sequence=32,
    ...     vocabulary=256,
    ... )
    >>> config.width, config.query_width, config.kv_width
    (16, 64, 32)
    """

    family: Literal["llama"] = "llama"
    num_layers: int
    dim: int
    num_heads: int
    num_kv_heads: int
    head_width: int = 0
    hidden: int
    experts: int = 0
    experts_per_token: int = 1
    normalised_gates: bool = False
    sequence: int
    vocabulary: int
    tied: bool = False
    activation: Activation = Activation.SILU
    norm_epsilon: float = 1e-5
    norm_offset: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    qkv_bias: bool = False
    project_bias: bool = False
    mlp_bias: bool = False
    scaled_embedding: bool = False
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logits_divisor: float = 1.0
    window: int = 0
    alternating: bool = False
    period: int = 2
    full_layers: tuple[int, ...] = ()
    local_base: float = 0.0
    unturned: bool = False
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    query_scale: float = 0.0
    rotary_width: int = 0
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling = RopeScaling.NONE
    rope_factor: float = 1.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_sequence: int = 8192
    rope_magnitude: float = 0.0
    rope_truncate: bool = True
    rope_short: tuple[float, ...] = ()
    rope_long: tuple[float, ...] = ()
    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    attention: Attention = Attention.AUTO
    logits_bytes: int = 2**26

    def __post_init__(self) -> None:
        check_llama(self)

    @property
    def width(self) -> int:
        """The width of a head."""
        return self.head_width or self.dim // self.num_heads

    @property
    def turned_width(self) -> int:
        """The numbers of a head that rotary positions turn."""
        return self.rotary_width or self.width

    @property
    def query_width(self) -> int:
        """The width of all queries of a token, and of the output of attention."""
        return self.num_heads * self.width

    @property
    def kv_width(self) -> int:
        """The width of all keys, or all values, of a token."""
        return self.num_kv_heads * self.width

    @property
    def ntk_base(self) -> float:
        """The base of rotary positions with which `rope_factor` divides the lowest frequency.

        Source: Peng et al. 2023, "YaRN", definition 1.
        """
        # A width of 2 has one frequency, which no base changes.
        width = self.turned_width
        return self.rope_base * self.rope_factor ** (width / max(width - 2, 1))

    @property
    def switch_length(self) -> int:
        """The longest text with the frequencies of short ones; 0 where they do not differ."""
        return self.rope_sequence if self.rope_scaling is RopeScaling.LONGROPE else 0

    @property
    def depth(self) -> int:
        """The number of attention layers: several for each group."""
        return self.num_layers * len(self.windows)

    @property
    def num_norms(self) -> int:
        """The number of norms over the residual stream's width in an attention layer."""
        return 2 * (self.pre_norms + self.post_norms)

    @property
    def full(self) -> tuple[int, ...]:
        """The numbers of the full ones of `depth` attention layers that differ."""
        if not self.alternating:
            return self.full_layers
        return tuple(range(self.period - 1, self.depth, self.period))

    def of_layer(self, number: int) -> "LlamaConfig":
        """Return the configuration whose layers all are as the one of this number.

        >>> config = LlamaConfig(
        ...     num_layers=3, dim=8, num_heads=2, num_kv_heads=1, hidden=8, sequence=8,
        ...     vocabulary=9, window=4, full_layers=(2,),
        ... )
        >>> [config.of_layer(number).window for number in range(3)]
        [4, 4, 0]
        """
        if not self.full_layers:
            return self
        is_full = number in self.full_layers
        return _derived(
            self if is_full else self.local,
            full_layers=(),
            local_base=0.0,
            window=0 if is_full else self.window,
            unturned=is_full and self.unturned,
        )

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each attention layer that makes one layer, where layers are equal.

        0 is for all tokens. Where layers differ, `of_layer` has that of each.
        """
        return (*[self.window] * (self.period - 1), 0) if self.alternating else (self.window,)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names in the parameters of the attention layers that make one; empty for one."""
        if not self.alternating:
            return ()
        numbers = ("", *map(str, range(2, self.period)))
        return (*(f"local{number}" for number in numbers), "full")

    @property
    def local(self) -> "LlamaConfig":
        """The rotary positions of the layers with the window, where they have their own."""
        if not self.local_base:
            return self
        return _derived(
            self,
            rope_base=self.local_base,
            rope_scaling=RopeScaling.NONE,
            rope_short=(),
            rope_long=(),
            local_base=0.0,
        )

    @property
    def classes(self) -> int:
        """0: the targets are the next tokens."""
        return 0

    @property
    def picture(self) -> None:
        """None: inputs are tokens."""

    @property
    def routing(self) -> Routing | None:
        """How tokens choose experts, each for itself; None if a layer has one MLP."""
        if not self.experts:
            return None
        return Routing(
            experts=self.experts,
            experts_per_token=self.experts_per_token,
            normalised_gates=self.normalised_gates,
            dispatch=Dispatch.RAGGED,
        )

    @property
    def dropout(self) -> float:
        """0: nothing is dropped."""
        return 0.0


def _derived(config: LlamaConfig, **fields: object) -> LlamaConfig:
    """Return a configuration with other fields, unchecked: in `jaxpipe verify` it is of float64."""
    other = copy(config)
    for name, value in fields.items():
        object.__setattr__(other, name, value)
    return other
