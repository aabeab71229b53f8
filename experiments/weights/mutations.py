"""Random mutations of the `config.json` of an architecture."""

from collections.abc import Collection, Mapping
from random import Random
from typing import Any, Final

LAYERS: Final = 2
SMALL: Final[dict[str, Any]] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 32,
    "vocab_size": 19,
    "head_dim": 4,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Fields of a small model of any architecture; the defaults of ids are outside its vocabulary."""
SMALL_GPT2: Final[dict[str, Any]] = {
    "n_embd": 16,
    "n_head": 4,
    "n_layer": LAYERS,
    "n_positions": 32,
    "vocab_size": 19,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_DIVISORS: Final = {"short_factor": [1.0, 1.5], "long_factor": [1.25, 6]}
_LONGROPES: Final[tuple[Any, ...]] = (
    {"type": "longrope", **_DIVISORS},
    {"type": "su", **_DIVISORS},
    {"type": "yarn", **_DIVISORS},
    {"type": "longrope", "short_factor": [2.0], "long_factor": [3.0]},
    {"type": "longrope", "short_factor": [2.0, 1.0], "long_factor": [3.0, 0.0]},
    {"type": "longrope", **_DIVISORS, "factor": 2.0},
    {"rope_type": "longrope", **_DIVISORS},
    {"rope_type": "longrope", **_DIVISORS, "factor": 2.0},
    {"rope_type": "longrope", **_DIVISORS, "attention_factor": 1.5},
    {"rope_type": "longrope", **_DIVISORS, "original_max_position_embeddings": 4},
)
"""Texts of nine tokens are long where the length of pretraining is 4, and short where it is 9."""
_ROPES: Final[tuple[Any, ...]] = (
    None,
    {"rope_type": "default"},
    {"type": "linear", "factor": 2.0},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 16},
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 1.5,
    },
    {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7, "mscale_all_dim": 0.5},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.7,
        "mscale_all_dim": 1.5,
    },
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.7,
    },
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    {"rope_type": "longrope", "factor": 2.0},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 8,
        "truncate": False,
    },
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16,
        "truncate": True,
    },
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "truncate": None,
    },
    *_LONGROPES,
    {"rope_theta": 300.0, "rope_type": "default"},
    {"rope_theta": 300.0, "rope_type": "default", "partial_rotary_factor": 0.5},
    {"full_attention": {"rope_type": "default", "rope_theta": 300.0}},
    {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
    },
    {
        "full_attention": {"rope_type": "default"},
        "sliding_attention": {"rope_type": "default"},
    },
)
_ANY: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu", "swish", "gelu", "relu", "gelu_pytorch_tanh", "gelu_new"),
    "hidden_activation": (None, "gelu_pytorch_tanh", "gelu", "silu"),
    "rms_norm_eps": (1e-6, 1e-5, 0.1, 0.0),
    "tie_word_embeddings": (True, False),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "num_key_value_heads": (1, 2, 4, None, 3),
    "num_attention_heads": (2, 4),
    "head_dim": (2, 4, 6, 8, None),
    "intermediate_size": (8, 24),
    "vocab_size": (19, 32),
    "num_hidden_layers": (1, 2, 3, 4),
    "max_position_embeddings": (16, 32),
    "sliding_window": (None, 1, 3, 8, 100, 0),
    "use_sliding_window": (True, False),
    "max_window_layers": (0, 1, 2, 5),
    "layer_types": (
        None,
        ["full_attention"] * LAYERS,
        ["sliding_attention"] * LAYERS,
        ["sliding_attention", "full_attention"],
        ["full_attention", "sliding_attention"],
    ),
    "rope_theta": (10_000.0, 100.0, 5000),
    "rope_scaling": _ROPES,
    "rope_parameters": _ROPES,
    "partial_rotary_factor": (1.0, 0.5, None),
    "pretraining_tp": (1, 2),
    "attn_logit_softcapping": (None, 2.0, 50.0),
    "final_logit_softcapping": (None, 3.0, 30.0),
    "query_pre_attn_scalar": (4, 7, 16),
    "embedding_multiplier": (1.0, 12.0),
    "residual_multiplier": (1.0, 0.22),
    "attention_multiplier": (1.0, 0.015625, 0.3),
    "logits_scaling": (1.0, 8.0),
    "attention_dropout": (0.0, 0.5),
    "resid_pdrop": (0.0, 0.5),
    "initializer_range": (0.02, 0.2),
    "use_cache": (True, False),
    "torch_dtype": ("float32", "bfloat16", None),
    "is_decoder": (True, False),
    "chunk_size_feed_forward": (0, 4),
    "original_max_position_embeddings": (4, 8, 9, 1, None, 16, 4096),
    "clip_qkv": (None, 1.0),
    "use_qk_norm": (True, False),
    "logit_scale": (0.5,),
    "output_attentions": (True, False),
    "temperature": (0.3,),
    "use_bidirectional_attention": (None, False, True),
    "sliding_window_pattern": (1, 2, 3, 6),
    "rope_local_base_freq": (10_000.0, 50.0),
    "no_rope_layers": (None, [1, 0], [0, 1], [1, 1], [0, 0]),
    "no_rope_layer_interval": (1, 2, 3, 4),
}
_ANY_EXPERTS: Final[dict[str, tuple[Any, ...]]] = {
    **_ANY,
    "num_local_experts": (1, 2, 4, 0),
    "num_experts": (1, 2, 4, 0),
    "num_experts_per_tok": (1, 2, 3, 5),
    "norm_topk_prob": (True, False),
    "moe_intermediate_size": (8, 24),
    "decoder_sparse_step": (1, 2),
    "mlp_only_layers": ([], [0], None),
    "output_router_logits": (True, False),
    "router_aux_loss_coef": (0.0, 0.02),
    "router_jitter_noise": (0.0, 0.1),
    "shared_expert_intermediate_size": (8,),
}
_ANY_GPT2: Final[dict[str, tuple[Any, ...]]] = {
    "activation_function": ("gelu_new", "gelu", "relu", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5, 1e-6, 0.1),
    "n_inner": (None, 64, 24),
    "scale_attn_weights": (True, False),
    "scale_attn_by_inverse_layer_idx": (True, False),
    "reorder_and_upcast_attn": (True, False),
    "tie_word_embeddings": (True, False),
    "n_head": (2, 4),
    "n_layer": (1, 2),
    "n_positions": (16, 32),
    "attn_pdrop": (0.0, 0.5),
    "summary_type": ("cls_index", "last"),
    "is_decoder": (True, False),
    "add_cross_attention": (True, False),
    "chunk_size_feed_forward": (0, 4),
    "rope_theta": (100.0,),
    "n_ctx": (8, 32),
}


_LAYERED = ("gemma2", "gemma3_text", "qwen2", "qwen3", "smollm3")
"""Architectures whose layers may differ."""


def small_fields(kind: str) -> dict[str, Any]:
    """Return the fields of a small model of an architecture."""
    fields: dict[str, Any] = {"model_type": kind, **(SMALL_GPT2 if kind == "gpt2" else SMALL)}
    if kind == "gemma3_text":
        fields |= {"sliding_window_pattern": 2, "sliding_window": 3}
    if kind == "phi3":
        fields |= {"rope_scaling": _LONGROPES[0], "original_max_position_embeddings": 4}
    if kind == "smollm3":
        fields["no_rope_layer_interval"] = 2
    if kind == "mixtral":
        fields |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if kind == "qwen3_moe":
        fields |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    if kind in ("gemma2", "gemma3_text"):
        fields["query_pre_attn_scalar"] = 16
    return fields


def mutated(kind: str, random: Random, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a small model, of which some are changed, added or left out.

    None of those `without` is added.
    """
    pools = {"gpt2": _ANY_GPT2, "mixtral": _ANY_EXPERTS, "qwen3_moe": _ANY_EXPERTS}
    fields, pool = small_fields(kind), pools.get(kind, _ANY)
    if kind == "phi3":
        fields |= _phi3_positions(random)
    if kind in _LAYERED:
        fields |= _layers(kind, random)
    for name in random.sample(sorted(pool.keys() - set(without)), random.randint(0, 4)):
        fields[name] = random.choice(pool[name])
    if random.random() < 0.2:
        fields.pop(random.choice(_removable(fields)), None)
    return fields


def _layers(kind: str, random: Random) -> dict[str, Any]:
    """Return some layers, often in an order of their own, which few mutations would have."""
    depth = random.randint(1, 6)
    fields: dict[str, Any] = {"num_hidden_layers": depth}
    if kind == "smollm3":
        order = [random.randint(0, 1) for _ in range(depth)]
        return fields | random.choice(({}, {"no_rope_layers": order}))
    fields |= {"sliding_window": 3}
    if kind in ("qwen2", "qwen3"):
        fields |= {"use_sliding_window": True, "max_window_layers": random.randint(0, depth)}
    types = [random.choice(("full_attention", "sliding_attention")) for _ in range(depth)]
    return fields | random.choice(({}, {"layer_types": types}))


def _phi3_positions(random: Random) -> dict[str, Any]:
    """Return rotary positions of each kind that the class has: few mutations would be of one."""
    kinds = (_LONGROPES[0], _LONGROPES[0], None, random.choice(_LONGROPES))
    return {
        "rope_scaling": random.choice(kinds),
        "original_max_position_embeddings": random.choice((4, 9)),
    }


def _removable(fields: Mapping[str, Any]) -> list[str]:
    # Their defaults are models of full size.
    large = {"hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "model_type"}
    large |= {"num_experts", "num_local_experts", "moe_intermediate_size"}
    return sorted(set(fields) - large - set(SMALL_GPT2) | {"bos_token_id"} & set(fields))
