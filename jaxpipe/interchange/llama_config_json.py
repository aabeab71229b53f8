"""Hugging Face's `config.json` of Llama, Mistral, Qwen 2, Qwen 3 and Gemma 2, and a `LlamaConfig`.

A field with a value that `jaxpipe.models.llama` does not compute is refused by its name. A model is
written as the architecture whose fields describe it completely: what is read again must be equal.

Source of the fields: the documentation of `transformers` (`LlamaConfig` and so on): of versions 4,
with `rope_theta` and `rope_scaling`, and 5, with `rope_parameters`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.fields import check_choice, number_of, size_of, switch_of
from jaxpipe.interchange.rope_fields import rope_fields_of, rope_of, same_rope
from jaxpipe.models import LlamaConfig
from jaxpipe.models.llama_config import Activation

ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
}

_FORMATS: Final = frozenset({"param_dtype", "compute_dtype", "attention", "logits_bytes"})
"""How a model is computed, which no file of another program states."""

_SIZES: Final = {
    "dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "sequence": "max_position_embeddings",
    "vocabulary": "vocab_size",
}

_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "pretraining_tp": (1,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0,),
    "quantization_config": (None,),
    "use_bidirectional_attention": (None, False),
}
"""The supported values of fields that are often left out; the first is the default."""

_GEMMA: Final = {
    "activation": Activation.GELU_TANH,
    "norm_offset": True,
    "post_norms": True,
    "scaled_embedding": True,
    "alternating": True,
}
"""What every Gemma 2 has."""


def config_of_llama(fields: Mapping[str, Any]) -> LlamaConfig:
    """Return the configuration equivalent to the fields of a `config.json`.

    Raises:
        ConfigError: a size is missing, or a field has a value that `jaxpipe.models.llama` does
            not compute.
    """
    kind = fields.get("model_type")
    check_choice(fields, "model_type", tuple(ARCHITECTURES))
    for name, values in _REFUSED.items():
        check_choice(fields, name, values)
    sizes = {ours: size_of(fields, theirs) for ours, theirs in _SIZES.items()}
    heads = sizes["num_heads"]
    settings: dict[str, Any] = {
        **sizes,
        "num_layers": size_of(fields, "num_hidden_layers"),
        "num_kv_heads": size_of(fields, "num_key_value_heads", default=heads),
        "head_width": _head_width(fields, dim=sizes["dim"], heads=heads),
        "norm_epsilon": number_of(fields, "rms_norm_eps", default=1e-6),
        "tied": switch_of(fields, "tie_word_embeddings", default=kind == "gemma2"),
        **rope_of(fields),
        **_special(fields),
    }
    try:
        return LlamaConfig(**settings)
    except ValueError as error:
        raise ConfigError(f"`config.json`: {error}") from error


def llama_config_of(config: LlamaConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`: the inverse of `config_of_llama`.

    Raises:
        ConfigError: no architecture of `ARCHITECTURES` is this model.
    """
    config = same_rope(config)
    kind = _kind(config)
    fields = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "num_hidden_layers": config.depth,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.width,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        **rope_fields_of(config),
        **_special_fields(kind, config),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    _check_is_whole(config, config_of_llama(fields), kind=kind)
    return fields


def _kind(config: LlamaConfig) -> str:
    """Return the architecture that the most special of a model's features belongs to."""
    if config.post_norms:
        return "gemma2"
    if config.qk_norm:
        return "qwen3"
    if config.qkv_bias and not config.project_bias:
        return "qwen2"
    return "mistral" if config.window else "llama"


def _check_is_whole(config: LlamaConfig, again: LlamaConfig, *, kind: str) -> None:
    for name in sorted({field.name for field in dataclasses.fields(config)} - _FORMATS):
        ours, theirs = getattr(config, name), getattr(again, name)
        # 0 and the width that it stands for are the same.
        if name in ("head_width", "query_scale"):
            ours, theirs = ours or config.width, theirs or config.width
        if ours != theirs:
            raise ConfigError(
                f"`model.{name}` is {ours!r}, and must be {theirs!r} in {kind}, the nearest "
                "architecture of `transformers`; change it, or keep the model in jaxpipe"
            )


def _head_width(fields: Mapping[str, Any], *, dim: int, heads: int) -> int:
    default = {"qwen3": 128, "gemma2": 256}.get(fields["model_type"], dim // max(heads, 1))
    # Null, as some files have it, is the default as well.
    width = size_of(fields, "head_dim", default=default)
    return 0 if width * heads == dim else width


def _special(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that one architecture has, or that it names in its own way."""
    kind, layers = fields["model_type"], size_of(fields, "num_hidden_layers")
    if kind == "gemma2":
        return _special_of_gemma(fields, layers)
    check_choice(fields, "hidden_act", ("silu",))
    if kind == "mistral":
        window = size_of(fields, "sliding_window", default=0)
        return {"window": window}
    _check_layer_types(fields, ["full_attention"] * layers)
    if kind == "qwen2":
        return {"qkv_bias": True}
    bias = switch_of(fields, "attention_bias", default=False)
    biases = {"qkv_bias": bias, "project_bias": bias}
    if kind == "qwen3":
        return {**biases, "qk_norm": True}
    return {**biases, "mlp_bias": switch_of(fields, "mlp_bias", default=False)}


def _special_of_gemma(fields: Mapping[str, Any], layers: int) -> dict[str, Any]:
    check_choice(fields, "hidden_activation", ("gelu_pytorch_tanh",))
    if layers % 2:
        raise ConfigError(
            f"`num_hidden_layers` ({layers}) in `config.json` must be even for Gemma 2, whose "
            "layers are pairs here; such a model cannot be imported"
        )
    _check_layer_types(fields, ["sliding_attention", "full_attention"] * (layers // 2))
    bias = switch_of(fields, "attention_bias", default=False)
    return {
        **_GEMMA,
        "num_layers": layers // 2,
        "qkv_bias": bias,
        "project_bias": bias,
        "window": size_of(fields, "sliding_window", default=4096),
        "attention_softcap": number_of(fields, "attn_logit_softcapping", default=50.0, null=0.0),
        "final_softcap": number_of(fields, "final_logit_softcapping", default=30.0, null=0.0),
        "query_scale": number_of(fields, "query_pre_attn_scalar", default=256.0),
    }


def _check_layer_types(fields: Mapping[str, Any], expected: list[str]) -> None:
    layer_types = fields.get("layer_types")
    if layer_types is not None and layer_types != expected:
        raise ConfigError(
            f"`layer_types` in `config.json` is {layer_types!r:.80}, not {expected[:2]!r:.80} and "
            "so on: windows are in no layer, in all, or in every other one; such a model cannot be "
            "imported"
        )


def _special_fields(kind: str, config: LlamaConfig) -> dict[str, Any]:
    biased, scale = {"attention_bias": config.qkv_bias}, config.query_scale or float(config.width)
    if kind == "gemma2":
        return {
            **biased,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": config.window,
            "attn_logit_softcapping": config.attention_softcap or None,
            "final_logit_softcapping": config.final_softcap or None,
            # `transformers` takes a whole number alone.
            "query_pre_attn_scalar": int(scale) if scale.is_integer() else scale,
        }
    if kind == "mistral":
        return {"hidden_act": "silu", "sliding_window": config.window}
    if kind == "qwen2":
        return {"hidden_act": "silu", "use_sliding_window": False}
    if kind == "qwen3":
        return {**biased, "hidden_act": "silu", "use_sliding_window": False}
    return {**biased, "hidden_act": "silu", "mlp_bias": config.mlp_bias}
