"""The architectures of `transformers` that the family `llama` computes: one record each.

A record says which fields of `config.json` describe the model, what the class of `transformers`
takes for one that is missing, and what all of its models have. Reading and writing follow from it
(`jaxpipe.interchange.llama_config_json`), and so do the names of tensors.

Source of the fields and of their defaults: the classes of `transformers` 4.57 and 5.24
(`LlamaConfig` and so on), which agree on them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jaxpipe.interchange.architecture_record import HEADS, STATED, WIDTH, Architecture, Groups

_SIZES: Final = {
    "hidden_size": STATED,
    "num_attention_heads": STATED,
    "intermediate_size": STATED,
    "max_position_embeddings": STATED,
    "vocab_size": STATED,
    "num_hidden_layers": STATED,
    "num_key_value_heads": HEADS,
    "head_dim": WIDTH,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_NULL: Final = {"num_key_value_heads": HEADS, "head_dim": WIDTH}
_NO_WINDOW: Final = {"use_sliding_window": (False,)}
_WINDOW_SIZES: Final = frozenset(("sliding_window", "max_window_layers"))
_GEMMA: Final = {"norm_offset": True, "scaled_embedding": True}
_TANH: Final = "gelu_pytorch_tanh"

LLAMA: Final = Architecture(
    kind="llama",
    model="LlamaForCausalLM",
    computed={**_SIZES, "attention_bias": False, "mlp_bias": False},
    null=_NULL,
)
MISTRAL: Final = Architecture(
    kind="mistral",
    model="MistralForCausalLM",
    computed={**_SIZES, "num_key_value_heads": 8, "sliding_window": 4096},
    null={**_NULL, "sliding_window": 0},
)
QWEN2: Final = Architecture(
    kind="qwen2",
    model="Qwen2ForCausalLM",
    computed={**_SIZES, "num_key_value_heads": 32, "sliding_window": 4096},
    null={"num_key_value_heads": HEADS, "sliding_window": 0},
    always={"qkv_bias": True},
    groups=Groups.LATER,
)
QWEN3: Final = Architecture(
    kind="qwen3",
    model="Qwen3ForCausalLM",
    computed={
        **_SIZES,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "attention_bias": False,
        "sliding_window": 4096,
    },
    null={"num_key_value_heads": HEADS, "sliding_window": 0},
    always={"qk_norm": True},
    groups=Groups.LATER,
)
PHI3: Final = Architecture(
    kind="phi3",
    model="Phi3ForCausalLM",
    computed={**_SIZES, "rms_norm_eps": 1e-5, "sliding_window": None},
    null={"num_key_value_heads": HEADS, "sliding_window": 0},
    only={"attention_bias": (False,), "mlp_bias": (False,)},  # which published files state
    inert=frozenset(("original_max_position_embeddings",)),  # of the scaling `longrope` alone
    rope_kinds=("default", "longrope"),
    rope_also={"su": "longrope", "yarn": "longrope"},  # as the class renames them
    is_partly_turned=True,
    is_fused=True,
)
OLMO2: Final = Architecture(
    kind="olmo2",
    model="Olmo2ForCausalLM",
    computed={**_SIZES, "rms_norm_eps": 1e-5, "attention_bias": False},
    null={"num_key_value_heads": HEADS},
    always={"pre_norms": False, "post_norms": True, "qk_norm": True, "wide_qk_norm": True},
)
GRANITE: Final = Architecture(
    kind="granite",
    model="GraniteForCausalLM",
    computed={
        **_SIZES,
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    null={"num_key_value_heads": HEADS},
)
GEMMA: Final = Architecture(
    kind="gemma",
    model="GemmaForCausalLM",
    computed={
        **_SIZES,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": _TANH,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    # Versions before 4.50 took it in place of `hidden_act`.
    only={"hidden_activation": (None, _TANH)},
    always=_GEMMA,
)
GEMMA2: Final = Architecture(
    kind="gemma2",
    model="Gemma2ForCausalLM",
    computed={
        **{name: value for name, value in _SIZES.items() if name != "hidden_act"},
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": _TANH,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256,
    },
    null={"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0},
    inert=frozenset(("hidden_act",)),  # the class reads `hidden_activation`
    always={**_GEMMA, "post_norms": True},
    groups=Groups.PAIRS,
)

GEMMA3: Final = Architecture(
    kind="gemma3_text",
    model="Gemma3ForCausalLM",
    computed={
        **{n: value for n, value in GEMMA2.computed.items() if n != "attn_logit_softcapping"},
        "max_position_embeddings": 131_072,
        "vocab_size": 262_208,
        "final_logit_softcapping": None,
    },
    null={"final_logit_softcapping": 0.0},
    only={"attn_logit_softcapping": (None,)},  # the class does not read it
    inert=frozenset(("hidden_act", "_sliding_window_pattern")),
    always={**_GEMMA, "post_norms": True, "qk_norm": True},
    rope_kinds=("default", "linear"),
    rope_base=1_000_000.0,
    groups=Groups.WINDOWS,
)
SMOLLM3: Final = Architecture(
    kind="smollm3",
    model="SmolLM3ForCausalLM",
    computed={
        **_SIZES,
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    },
    null=_NULL,
    only=_NO_WINDOW,
    inert=_WINDOW_SIZES,
    rope_base=2_000_000.0,
    groups=Groups.POSITIONS,
)

_SPARSE: Final = {
    "output_router_logits": (False,),  # with it, the loss of training has that of the router
}
MIXTRAL: Final = Architecture(
    kind="mixtral",
    model="MixtralForCausalLM",
    computed={
        **_SIZES,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    null={**_NULL, "sliding_window": 0},
    only={**_SPARSE, "router_jitter_noise": (0.0, 0)},
    inert=frozenset(("router_aux_loss_coef",)),
    always={"normalised_gates": True},
    rope_base=1_000_000.0,
    experts={
        "router": "block_sparse_moe.gate",
        "gate": "block_sparse_moe.experts.{}.w1",
        "up": "block_sparse_moe.experts.{}.w3",
        "down": "block_sparse_moe.experts.{}.w2",
    },
)
QWEN3_MOE: Final = Architecture(
    kind="qwen3_moe",
    model="Qwen3MoeForCausalLM",
    computed={
        **{name: value for name, value in _SIZES.items() if name != "intermediate_size"},
        "num_key_value_heads": 4,
        "attention_bias": False,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    also={"num_local_experts": "num_experts"},  # which version 5 writes, and 4 does not read
    null=_NULL,
    only={
        **_SPARSE,
        **_NO_WINDOW,
        # Layers without experts, which are no layers of the same kind.
        "decoder_sparse_step": (1,),
        "mlp_only_layers": ([], None),
    },
    # Of layers without experts, of the loss of the router, and of windows.
    inert=frozenset(("intermediate_size", "router_aux_loss_coef", *_WINDOW_SIZES)),
    always={"qk_norm": True},
    experts={
        "router": "mlp.gate",
        **{name: f"mlp.experts.{{}}.{name}_proj" for name in ("gate", "up", "down")},
    },
)

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        record.kind: record
        for record in (
            LLAMA,
            MISTRAL,
            QWEN2,
            QWEN3,
            PHI3,
            OLMO2,
            GRANITE,
            GEMMA,
            GEMMA2,
            GEMMA3,
            SMOLLM3,
            MIXTRAL,
            QWEN3_MOE,
        )
    }
)
