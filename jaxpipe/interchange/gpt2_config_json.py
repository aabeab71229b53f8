"""Hugging Face's `config.json` of a GPT-2, and the `GptConfig` that computes the same.

`jaxpipe.models.gpt` is GPT-2's architecture: LayerNorm first with epsilon 1e-5, GELU in its tanh
form, biases everywhere, learned positions, scores divided by the root of a head's width. Other
variants are refused with the name of the field. Dropout changes no logit: it is left to the
configuration of the run that continues.

Source of the fields: the documentation of `transformers.GPT2Config`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.fields import check_known
from jaxpipe.interchange.file_names import refused_by_name
from jaxpipe.models import GptConfig

_SIZES = {
    "num_layers": "n_layer",
    "dim": "n_embd",
    "num_heads": "n_head",
    "sequence": "n_positions",
    "vocabulary": "vocab_size",
}

_ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
"""The supported values; the first is GPT-2's default for a missing field."""


def config_of_gpt2(fields: Mapping[str, Any], ignored: Collection[str] = ()) -> GptConfig:
    """Return the configuration equivalent to the fields of a `config.json`, without some `ignored`.

    >>> sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 32}
    >>> config_of_gpt2({"model_type": "gpt2", **sizes}).hidden
    32

    Raises:
        ConfigError: a size is missing, or a field has a value that `jaxpipe.models.gpt` does
            not compute.
    """
    if "model_type" not in fields:
        raise ConfigError("`model_type` is missing in `config.json`; give gpt2")
    # Missing fields have GPT-2's default, as in `transformers`: old files leave many out.
    for name, values in _ONLY.items():
        _check(name, fields.get(name, values[0]), values)
    known = {*_ONLY, *_SIZES.values(), "n_inner", "tie_word_embeddings"}
    check_known(fields, known, kind="gpt2", ignored=ignored)
    sizes: dict[str, Any] = {}
    for ours, theirs in _SIZES.items():
        size = fields.get(theirs)
        if not isinstance(size, int) or isinstance(size, bool):
            raise ConfigError(
                f"`{theirs}` in `config.json` must be a whole number, not {size!r:.80}"
            )
        sizes[ours] = size
    tied = fields.get("tie_word_embeddings", True)
    _check("tie_word_embeddings", tied, (True, False))
    inner = fields.get("n_inner")
    _check("n_inner", inner, (None, 4 * sizes["dim"]))
    with refused_by_name(_SIZES, derived={}, stated=fields):
        return GptConfig(**sizes, tied=tied)


def gpt2_config_of(config: GptConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`: the inverse of `config_of_gpt2`."""
    sizes = {theirs: getattr(config, ours) for ours, theirs in _SIZES.items()}
    return {
        "architectures": ["GPT2LMHeadModel"],
        **{name: values[0] for name, values in _ONLY.items()},
        **sizes,
        "n_ctx": config.sequence,
        "n_inner": None,
        "tie_word_embeddings": config.tied,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        # `jaxpipe.models.gpt` drops no attention probabilities.
        "attn_pdrop": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def check_is_gpt2(config: GptConfig) -> None:
    """Check that a model is a GPT-2, which has no experts, classes, pictures and bottlenecks.

    Raises:
        ConfigError: it is not.
    """
    plain = {"experts": 0, "classes": 0, "patch": 0, "causal": True}
    for field, value in plain.items():
        if (actual := getattr(config, field)) != value:
            raise ConfigError(
                f"`model.{field}` must be {value}, not {actual}: only a GPT-2 can be exported"
            )

    if config.bottlenecks:
        raise ConfigError(
            f"`model.bottlenecks` must be empty, not {list(map(list, config.bottlenecks))}: only a "
            "GPT-2 can be exported, which has no projections between layers, and they cannot be "
            "folded into a layer, whose input is the output of another one; `generate` and "
            "`evaluate` read the run itself"
        )


def _check(name: str, value: Any, values: tuple[Any, ...]) -> None:
    if value not in values:
        choices = " or ".join(map(repr, values))
        raise ConfigError(
            f"`{name}` in `config.json` is {value!r:.80}, and of GPT-2 only {choices} can be "
            "imported"
        )
