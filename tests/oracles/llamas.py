"""One small decoder of each kind of the family `llama`: what is special to a kind is in one."""

from dataclasses import replace

from jaxpipe.models.llama_config import Activation, LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling

LLAMA = LlamaConfig(
    num_layers=2,
    dim=16,
    num_heads=4,
    num_kv_heads=2,
    hidden=24,
    sequence=12,
    vocabulary=19,
    rope_base=100.0,
    rope_scaling=RopeScaling.LLAMA3,
    rope_factor=4.0,
    rope_sequence=64,
)
PLAIN = replace(LLAMA, rope_scaling=RopeScaling.NONE, rope_factor=1.0, rope_sequence=8192)

QWEN2 = replace(PLAIN, qkv_bias=True, tied=True)
QWEN3 = replace(PLAIN, qk_norm=True, head_width=6, norm_epsilon=1e-6)
MISTRAL = replace(PLAIN, window=3, num_kv_heads=1)
BIASED = replace(PLAIN, qkv_bias=True, project_bias=True, mlp_bias=True, num_kv_heads=4)
GEMMA = replace(
    PLAIN,
    num_layers=2,
    tied=True,
    activation=Activation.GELU_TANH,
    norm_offset=True,
    post_norms=True,
    scaled_embedding=True,
    window=3,
    alternating=True,
    attention_softcap=2.0,
    final_softcap=3.0,
    query_scale=7.0,
    head_width=6,
)
GEMMA1 = replace(
    PLAIN,
    tied=True,
    activation=Activation.GELU_TANH,
    norm_offset=True,
    scaled_embedding=True,
    head_width=6,
)
PHI3 = replace(PLAIN, rotary_width=2, window=3)
OLMO2 = replace(PLAIN, pre_norms=False, post_norms=True, qk_norm=True, wide_qk_norm=True)
GRANITE = replace(
    PLAIN, embedding_factor=12.0, residual_factor=0.25, logits_divisor=8.0, query_scale=64.0
)
YARN = replace(
    PLAIN,
    rope_scaling=RopeScaling.YARN,
    rope_factor=4.0,
    rope_low=1.0,
    rope_high=32.0,
    rope_sequence=512,
    head_width=8,
)
UNROUNDED = replace(YARN, rope_truncate=False)
SHORT = replace(
    PHI3,
    head_width=8,
    rotary_width=6,
    rope_scaling=RopeScaling.LONGROPE,
    rope_factor=3.0,
    rope_sequence=9,
    rope_short=(1.0, 1.1, 1.3),
    rope_long=(1.0, 3.0, 7.5),
)
LONG = replace(SHORT, rope_sequence=4)
"""`SHORT` and `LONG` have LongRoPE scaling; texts of 5 to 9 tokens are long in one alone."""
DYNAMIC = replace(
    PLAIN, rope_scaling=RopeScaling.DYNAMIC, rope_factor=4.0, rope_sequence=PLAIN.sequence
)
GEMMA3 = replace(
    GEMMA,
    attention_softcap=0.0,
    final_softcap=0.0,
    qk_norm=True,
    period=3,
    local_base=30.0,
    rope_scaling=RopeScaling.LINEAR,
    rope_factor=4.0,
)
SMOLLM3 = replace(PLAIN, tied=True, alternating=True, period=2, unturned=True)
GEMMA3_RAGGED = replace(GEMMA3, num_layers=5, alternating=False, period=2, full_layers=(2,))
"""As Gemma 3 1B: layers that are no groups."""
SMOLLM3_RAGGED = replace(PLAIN, num_layers=3, tied=True, full_layers=(0,), unturned=True)
RAGGED = {"gemma3_text": GEMMA3_RAGGED, "smollm3": SMOLLM3_RAGGED}
UNTURNED = replace(PLAIN, unturned=True)
MIXTRAL = replace(PLAIN, experts=4, experts_per_token=2, normalised_gates=True, window=3)
QWEN3_MOE = replace(QWEN3, experts=5, experts_per_token=3)
VARIANTS = {
    "gemma": GEMMA1,
    "phi3": PHI3,
    "olmo2": OLMO2,
    "granite": GRANITE,
    "gemma3_text": GEMMA3,
    "smollm3": SMOLLM3,
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN3_MOE,
    "yarn": YARN,
    "dynamic": DYNAMIC,
    "unrounded": UNROUNDED,
    "short": SHORT,
    "long": LONG,
    "unturned": UNTURNED,
}
"""Kinds that came later; `KINDS` are those that older tests compile."""

KINDS = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mistral": MISTRAL,
    "biased": BIASED,
    "gemma2": GEMMA,
}
