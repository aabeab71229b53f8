"""The architectures of `transformers` that jaxpipe does not compute, and what it lacks of them."""

from types import MappingProxyType
from typing import Final

LACKING: Final = MappingProxyType(
    {
        "gemma3": "images",
        "qwen2_moe": "experts that all tokens share",
        "granitemoe": "gates that are normalised before they are chosen, and fused experts",
        "deepseek_v2": "latent attention and experts that all tokens share",
        "deepseek_v3": "latent attention and experts that all tokens share",
        "gpt_oss": "attention sinks, and experts with biases",
        "cohere": "one norm for attention and MLP together",
        "phi": "one norm for attention and MLP together",
        "gpt_neox": "attention and MLP side by side",
        "gptj": "attention and MLP side by side",
        "falcon": "attention and MLP side by side",
        "bloom": "positions by linear biases",
        "mpt": "positions by linear biases",
        "opt": "positions with an offset, and ReLU",
        "starcoder2": "a plain MLP beside rotary positions",
        "stablelm": "LayerNorm beside rotary positions",
        "olmo": "norms without parameters",
        "ministral": "windows in some layers",
        "ministral3": "scores that grow with the position",
        "mistral3": "images",
        "llama4": "images and experts that all tokens share",
        "t5": "an encoder beside the decoder",
        "bert": "an encoder with token types",
        "mamba": "state-space layers",
    }
)
"""By the value of `model_type`, to refuse them by name."""
