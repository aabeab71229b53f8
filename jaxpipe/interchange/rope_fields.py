"""Rotary positions in a `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.fields import check_choice, number_of, size_of
from jaxpipe.models import LlamaConfig
from jaxpipe.models.llama_config import RopeScaling

_LLAMA3 = {
    "rope_low": "low_freq_factor",
    "rope_high": "high_freq_factor",
}


def rope_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `LlamaConfig` about rotary positions.

    Raises:
        ConfigError: they are scaled in a way that jaxpipe does not compute.
    """
    scaling = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(
            f"`rope_scaling` is {scaling!r:.80} in `config.json`; give a table, or null"
        )
    base = number_of({**stated, **scaling}, "rope_theta", default=10_000.0)
    # Old files say `type`.
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    check_choice({"rope_type": kind}, "rope_type", ("default", "linear", "llama3"))
    values: dict[str, Any] = {"rope_base": base}
    if kind == "default":
        return values
    values |= {"rope_scaling": RopeScaling(kind), "rope_factor": number_of(scaling, "factor")}
    if kind == "llama3":
        values |= {ours: number_of(scaling, theirs) for ours, theirs in _LLAMA3.items()}
        values["rope_sequence"] = size_of(scaling, "original_max_position_embeddings")
    return values


def rope_fields_of(config: LlamaConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`, for readers of either form.

    `config` is that of `same_rope`.
    """
    if config.rope_scaling is RopeScaling.NONE:
        return {"rope_theta": config.rope_base, "rope_scaling": None}
    scaling: dict[str, Any] = {
        "rope_type": config.rope_scaling.value,
        "factor": config.rope_factor,
    }
    if config.rope_scaling is RopeScaling.LLAMA3:
        scaling |= {theirs: getattr(config, ours) for ours, theirs in _LLAMA3.items()}
        scaling["original_max_position_embeddings"] = config.rope_sequence
    return {"rope_theta": config.rope_base, "rope_scaling": scaling}


def same_rope(config: LlamaConfig) -> LlamaConfig:
    """Return the same positions in the fewest fields: a base in place of NTK, unused ones fresh."""
    unused = ("rope_low", "rope_high", "rope_sequence")
    fresh: dict[str, Any] = {
        field.name: field.default for field in fields(LlamaConfig) if field.name in unused
    }
    if config.rope_scaling is RopeScaling.LLAMA3:
        return config
    if config.rope_scaling is RopeScaling.LINEAR:
        return replace(config, **fresh)
    base = config.ntk_base if config.rope_scaling is RopeScaling.NTK else config.rope_base
    return replace(config, rope_scaling=RopeScaling.NONE, rope_base=base, rope_factor=1.0, **fresh)
