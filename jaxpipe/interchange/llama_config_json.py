"""Hugging Face's `config.json` of the architectures that the family `llama` computes.

A field with a value that `jaxpipe.models.llama` does not compute is refused by its name, and so is
one that is not known. A model is written as the architecture whose fields describe it completely:
what is read again must be equal.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.architecture_record import HEADS, STATED, WIDTH, Architecture
from jaxpipe.interchange.architectures import ARCHITECTURES
from jaxpipe.interchange.fields import check_choice, check_known, number_of, size_of, switch_of
from jaxpipe.interchange.file_names import refused_by_name
from jaxpipe.interchange.layer_fields import grouped, layer_fields_of, same_layers
from jaxpipe.interchange.rope_fields import (
    names_of_rope,
    rope_fields_of,
    rope_of,
    same_rope,
)
from jaxpipe.models import LlamaConfig
from jaxpipe.models.llama_config import Activation
from jaxpipe.models.sizes import check_sizes

_ACTIVATIONS: Final = MappingProxyType(
    {
        "silu": Activation.SILU,
        "swish": Activation.SILU,
        "gelu_pytorch_tanh": Activation.GELU_TANH,
        "gelu_new": Activation.GELU_TANH,
    }
)
"""The first name of each is the one that is written."""
_MOST_BITS: Final = 1000
"""Of the exponent of a number."""
_FORMATS: Final = frozenset({"param_dtype", "compute_dtype", "attention", "logits_bytes"})
"""How a model is computed, which no file of another program states."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A field of `config.json` that is a number of ours, or a power of it."""

    ours: str
    power: float = 1.0

    def read(self, stated: Mapping[str, Any], name: str) -> dict[str, Any]:
        value = number_of(stated, name)
        if self.power == 1:
            return {self.ours: value}
        exponent = 1 / self.power
        # Logarithms, since a power of any number may be none: 0 would stand for the default.
        if not value > 0 or abs(math.log2(value) * exponent) > _MOST_BITS:
            raise ConfigError(
                f"`{name}` in `config.json` must be above 0, and no power of it out of the range "
                f"of numbers, not {value!r}"
            )
        return {self.ours: value**exponent}

    def write(self, config: LlamaConfig) -> float | int:
        value = float(getattr(config, self.ours))
        if self.ours == "query_scale":
            value = value or float(config.width)
        value = value**self.power
        # `transformers` takes a whole number alone as the scale of queries.
        is_whole = self.ours == "query_scale" and self.power == 1 and value.is_integer()
        return int(value) if is_whole else value


@dataclass(frozen=True, slots=True)
class _Size:
    """A whole number, of which the model checks its own limits."""

    ours: str
    least: int | None = None

    def read(self, stated: Mapping[str, Any], name: str) -> dict[str, Any]:
        size = size_of(stated, name)
        if self.least is not None and size < self.least:
            raise ConfigError(
                f"`{name}` in `config.json` must be at least {self.least}, not {size}"
            )
        return {self.ours: size}

    def write(self, config: LlamaConfig) -> int:
        return int(getattr(config, self.ours))


@dataclass(frozen=True, slots=True)
class _Switch:
    """A switch, which may be several of ours."""

    ours: tuple[str, ...]

    def read(self, stated: Mapping[str, Any], name: str) -> dict[str, Any]:
        return dict.fromkeys(self.ours, switch_of(stated, name))

    def write(self, config: LlamaConfig) -> bool:
        return bool(getattr(config, self.ours[0]))


@dataclass(frozen=True, slots=True)
class _Activation:
    """The name of the activation."""

    def read(self, stated: Mapping[str, Any], name: str) -> dict[str, Any]:
        check_choice(stated, name, tuple(_ACTIVATIONS))
        return {"activation": _ACTIVATIONS[stated[name]]}

    def write(self, config: LlamaConfig) -> str:
        return next(name for name, ours in _ACTIVATIONS.items() if ours is config.activation)


_TRANSLATED: Final = {
    "hidden_size": _Size("dim"),
    "num_attention_heads": _Size("num_heads"),
    "intermediate_size": _Size("hidden"),
    "max_position_embeddings": _Size("sequence"),
    "vocab_size": _Size("vocabulary"),
    "num_hidden_layers": _Size("depth"),
    "num_key_value_heads": _Size("num_kv_heads"),
    "head_dim": _Size("width"),
    "hidden_act": _Activation(),
    "hidden_activation": _Activation(),
    "moe_intermediate_size": _Size("hidden"),
    "num_local_experts": _Size("experts", least=1),
    "num_experts": _Size("experts", least=1),
    "num_experts_per_tok": _Size("experts_per_token"),
    "norm_topk_prob": _Switch(("normalised_gates",)),
    "rms_norm_eps": _Number("norm_epsilon"),
    "tie_word_embeddings": _Switch(("tied",)),
    "attention_bias": _Switch(("qkv_bias", "project_bias")),
    "mlp_bias": _Switch(("mlp_bias",)),
    "sliding_window": _Size("window"),
    "attn_logit_softcapping": _Number("attention_softcap"),
    "final_logit_softcapping": _Number("final_softcap"),
    "query_pre_attn_scalar": _Number("query_scale"),
    "attention_multiplier": _Number("query_scale", power=-0.5),
    "embedding_multiplier": _Number("embedding_factor"),
    "residual_multiplier": _Number("residual_factor"),
    "logits_scaling": _Number("logits_divisor"),
}


def config_of_llama(fields: Mapping[str, Any], ignored: Collection[str] = ()) -> LlamaConfig:
    """Return the configuration equivalent to the fields of a `config.json`, without some `ignored`.

    Raises:
        ConfigError: a size is missing, a field is not known, or has a value that
            `jaxpipe.models.llama` does not compute.
    """
    kind = fields.get("model_type")
    check_choice({"model_type": kind}, "model_type", tuple(ARCHITECTURES))
    record = ARCHITECTURES[str(kind)]
    check_known(fields, record.known, kind=record.kind, ignored=ignored)
    stated = _by_name({n: value for n, value in fields.items() if n not in ignored}, record)
    for name, values in record.only.items():
        check_choice(stated, name, values)
    settings: dict[str, Any] = dict(record.always)
    for name, default in record.computed.items():
        settings |= _TRANSLATED[name].read({name: _value(name, default, stated, record)}, name)
    settings |= rope_of(stated, record)
    return _built(settings, stated, record)


def _by_name(stated: Mapping[str, Any], record: Architecture) -> dict[str, Any]:
    """Return the fields by their usual names."""
    named = {name: value for name, value in stated.items() if name not in record.also}
    for other, name in record.also.items():
        if other in stated and named.setdefault(name, stated[other]) != stated[other]:
            raise ConfigError(
                f"`{name}` and `{other}` in `config.json` say the same, and are "
                f"{stated[name]!r:.40} and {stated[other]!r:.40}; remove one of them"
            )
    return named


def _value(name: str, default: Any, stated: Mapping[str, Any], record: Architecture) -> Any:
    """Return the value of a field; of one that is missing or null, what `transformers` takes."""
    value = stated.get(name, default)
    if value is None and name in record.null:
        value = record.null[name]
    if value is STATED:
        raise ConfigError(f"`{name}` must be stated in `config.json`; give the complete file")
    if value is HEADS or value is WIDTH:
        heads = size_of(stated, "num_attention_heads")
        value = heads if value is HEADS else size_of(stated, "hidden_size") // max(heads, 1)
    elif name == "sliding_window" and value == 0 and stated.get(name) is not None:
        raise ConfigError(f"`{name}` in `config.json` must be at least 1 or null, not {value}")
    return value


def _built(
    settings: dict[str, Any], stated: Mapping[str, Any], record: Architecture
) -> LlamaConfig:
    names, derived = _names_of(settings, record)
    with refused_by_name(names, derived=derived, stated=stated):
        # First: what follows counts the layers one by one.
        check_sizes(SimpleNamespace(num_layers=settings["depth"]), ("num_layers",), least=1)
    settings = grouped(settings, stated, record)
    depth, width = settings.pop("depth"), settings.pop("width")
    part = settings.pop("turned_part", None)
    is_default = width * settings["num_heads"] == settings["dim"]
    with refused_by_name(names, derived=derived, stated=stated):
        return LlamaConfig(
            num_layers=depth // settings.get("period", 1),
            head_width=0 if is_default else width,
            rotary_width=0 if part is None else int(width * part),
            **settings,
        )


def _names_of(
    settings: Mapping[str, Any], record: Architecture
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the names in the file by ours: of the same value, and of one that ours is made of."""
    names, derived = names_of_rope(settings)
    for name in record.computed:
        entry = _TRANSLATED[name]
        if isinstance(entry, _Number) and entry.power != 1:
            derived[entry.ours] = name
        elif isinstance(entry, _Size | _Number):
            names[entry.ours] = name
        elif isinstance(entry, _Switch):
            names |= dict.fromkeys(entry.ours, name)
    names |= {"num_layers": names["depth"], "head_width": names["width"]}
    return names, derived


def llama_config_of(config: LlamaConfig, *, kind: str | None = None) -> dict[str, Any]:
    """Return the fields of a `config.json`: the inverse of `config_of_llama`.

    Of several architectures that are this model, it is the one of `kind`, or else the first.

    Raises:
        ConfigError: no architecture of `ARCHITECTURES` is this model.
    """
    config = same_layers(same_rope(config))
    nearest: tuple[str, tuple[tuple[str, Any, Any], ...]] | None = None
    for record in sorted(ARCHITECTURES.values(), key=lambda record: record.kind != kind):
        fields = _fields_of(config, record)
        differing = _differing(config, fields)
        if not differing:
            return fields
        if nearest is None or len(differing) < len(nearest[1]):
            nearest = record.kind, differing
    assert nearest is not None
    name, ours, theirs = nearest[1][0]
    raise ConfigError(
        f"`model.{name}` is {ours!r}, and must be {theirs!r} in {nearest[0]}, the nearest "
        "architecture of `transformers`; change it, or keep the model in jaxpipe"
    )


def _fields_of(config: LlamaConfig, record: Architecture) -> dict[str, Any]:
    """Return the fields of a `config.json` as far as an architecture has them."""
    fields: dict[str, Any] = {"architectures": [record.model], "model_type": record.kind}
    for name in record.computed:
        value = _TRANSLATED[name].write(config)
        is_null = name in record.null and value == record.null[name]
        fields[name] = None if is_null else value
    fields |= rope_fields_of(config) | layer_fields_of(config, record)
    fields |= {name: values[0] for name, values in record.only.items() if values[0] is not None}
    if "hidden_activation" in record.computed:
        fields["hidden_act"] = fields["hidden_activation"]
    return {**fields, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True}


def _differing(config: LlamaConfig, fields: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Return the names and both values of what is not read again as it is."""
    try:
        again = config_of_llama(fields)
    except ConfigError:  # nothing of this architecture fits
        return (("family", config.family, fields["model_type"]),) * len(dataclasses.fields(config))
    differing: list[tuple[str, Any, Any]] = []
    for name in sorted({field.name for field in dataclasses.fields(config)} - _FORMATS):
        ours, theirs = getattr(config, name), getattr(again, name)
        # 0 and the width that it stands for are the same.
        if name in ("head_width", "query_scale"):
            ours, theirs = ours or config.width, theirs or config.width
        # A text may be as long as it says; the scaling says more (`longrope_fields_of`).
        if name == "sequence" and config.switch_length and ours < theirs:
            continue
        if ours != theirs:
            differing.append((name, ours, theirs))
    return tuple(differing)
