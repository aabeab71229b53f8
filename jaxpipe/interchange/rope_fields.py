"""Rotary positions in a `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters`.

The first form is that of `transformers` 4, the second that of 5, which reads both. Where a file has
both, they must say the same: version 4 obeys one of them, and version 5 the other.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.architecture_record import Architecture, Groups
from jaxpipe.interchange.fields import check_choice, number_of, size_of
from jaxpipe.interchange.longrope_fields import (
    LONGROPE_KEYS,
    LONGROPE_OLD_KEYS,
    longrope_fields_of,
    longrope_of,
)
from jaxpipe.models import LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling

_LOCAL_BASE: Final = 10_000.0
_LLAMA3: Final = {"rope_low": "low_freq_factor", "rope_high": "high_freq_factor"}
_YARN: Final = {"rope_low": ("beta_slow", 1.0), "rope_high": ("beta_fast", 32.0)}
_MAGNITUDES: Final = ("mscale", "mscale_all_dim")
_LENGTH: Final = "original_max_position_embeddings"
_PART: Final = "partial_rotary_factor"
_KEYS: Final[dict[str, frozenset[str]]] = {
    "default": frozenset((_LENGTH,)),  # not read there
    "linear": frozenset(("factor", _LENGTH)),
    "dynamic": frozenset(("factor", _LENGTH)),
    "llama3": frozenset(("factor", _LENGTH, *_LLAMA3.values())),
    "yarn": frozenset(
        (
            "factor",
            _LENGTH,
            "attention_factor",
            "truncate",
            *_MAGNITUDES,
            *(name for name, _ in _YARN.values()),
        )
    ),
    "longrope": LONGROPE_KEYS,
}
"""The keys of each scaling, beside those of all."""
_ALL_KEYS: Final = frozenset(("rope_type", "type", "rope_theta", _PART))
_NUMBERS: Final = MappingProxyType(
    {
        RopeScaling.LINEAR: ("rope_factor",),
        RopeScaling.DYNAMIC: ("rope_factor", "rope_sequence"),
        RopeScaling.LLAMA3: ("rope_factor", "rope_low", "rope_high", "rope_sequence"),
        RopeScaling.YARN: (
            "rope_factor",
            "rope_low",
            "rope_high",
            "rope_sequence",
            "rope_magnitude",
            "rope_truncate",
        ),
        RopeScaling.LONGROPE: (
            "rope_factor",
            "rope_sequence",
            "rope_magnitude",
            "rope_short",
            "rope_long",
        ),
    }
)
"""The fields of a `LlamaConfig` that each scaling reads."""
SCALING_NUMBERS: Final = frozenset(name for names in _NUMBERS.values() for name in names)


def rope_of(stated: Mapping[str, Any], record: Architecture) -> dict[str, Any]:
    """Return the fields of a `LlamaConfig` about rotary positions.

    Raises:
        ConfigError: they are scaled in a way that jaxpipe does not compute, or stated twice.
    """
    stated = {**stated, **_by_layer_type(stated, record)}
    new = _form(stated, "rope_parameters", record)
    old = _form(stated, "rope_scaling", record)
    if stated.get("rope_parameters") and stated.get("rope_scaling") and new != old:
        raise ConfigError(
            "`rope_parameters` and `rope_scaling` in `config.json` must say the same, and differ: "
            "versions of `transformers` read one or the other; remove the wrong one"
        )
    local = {name: stated[name] for name in ("local_base",) if name in stated}
    return {**(new if stated.get("rope_parameters") else old), **local}


def names_of_rope(settings: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names in the file by ours: of the same value, and of one that ours is made of."""
    kind = settings.get("rope_scaling", RopeScaling.NONE)
    ramp = {ours: name for ours, (name, _) in _YARN.items()}
    is_dynamic = kind is RopeScaling.DYNAMIC
    names = {
        "rope_base": "rope_theta",
        "local_base": "rope_local_base_freq",
        "rope_factor": "factor",
        "rope_sequence": "max_position_embeddings" if is_dynamic else _LENGTH,
        "rope_magnitude": "attention_factor",
        "rope_scaling": "rope_type",
        **(ramp if kind is RopeScaling.YARN else _LLAMA3),
    }
    return names, {"rotary_width": _PART}


def _by_layer_type(stated: Mapping[str, Any], record: Architecture) -> dict[str, Any]:
    """Return `rope_parameters` of the layers without a window, and the base of the others.

    Where windows differ, version 5 has a table for either kind of layer.
    """
    tables = stated.get("rope_parameters")
    if record.groups is not Groups.WINDOWS or tables is None:
        return {}
    kinds = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
    if not isinstance(tables, Mapping) or set(tables) != set(kinds):
        raise ConfigError(
            f"`rope_parameters` in `config.json` must have the tables {' and '.join(kinds)} of "
            f"{record.kind}, not {tables!r:.80}"
        )
    for name, key in kinds.items():
        table = tables[name]
        if not isinstance(table, Mapping):
            raise ConfigError(f"`{name}` in `config.json` is {table!r:.80}; give a table")
        if stated.get(key) not in (None, table.get("rope_theta")):
            raise ConfigError(
                f"`{key}` in `config.json` is {stated[key]!r:.80}, and `rope_theta` in "
                f"`rope_parameters` {table.get('rope_theta')!r:.80}: versions of `transformers` "
                "read one or the other; state one value in both"
            )
    local, full = tables["sliding_attention"], tables["full_attention"]
    if unknown := sorted(local.keys() - _ALL_KEYS):
        raise ConfigError(
            f"`sliding_attention` in `config.json` has {unknown[0]:.60}, and jaxpipe scales no "
            "rotary positions there; such a model cannot be imported"
        )
    check_choice({"rope_type": _kind(local, record)}, "rope_type", ("default",))
    base = number_of(local, "rope_theta", default=_LOCAL_BASE)
    return {"rope_parameters": full, "local_base": base, "rope_theta": full.get("rope_theta")}


def _form(stated: Mapping[str, Any], name: str, record: Architecture) -> dict[str, Any]:
    """Return what one of the two forms says; the base may stand outside of either."""
    scaling = stated.get(name) or {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"`{name}` is {scaling!r:.80} in `config.json`; give a table, or null")
    for key in ("rope_theta", _PART):
        inner, outer = scaling.get(key), stated.get(key)
        # Inside of the old form, version 4 does not read it, and version 5 does.
        is_old = name == "rope_scaling" and outer is None
        if inner is not None and inner != outer and (outer is not None or is_old):
            raise ConfigError(
                f"`{key}` in `config.json` is {outer!r:.80}, and {inner!r:.80} in `{name}`: "
                "versions of `transformers` read one or the other; state one value in both"
            )
    kind = _kind(scaling, record)
    known = _ALL_KEYS | _KEYS[kind]
    if kind == "longrope" and name == "rope_scaling":
        known = LONGROPE_OLD_KEYS
    if unknown := sorted(scaling.keys() - known):
        raise ConfigError(
            f"`{name}` in `config.json` has {unknown[0]:.60} = {scaling[unknown[0]]!r:.60}, and "
            f"jaxpipe computes only {', '.join(sorted(known))} of {kind}; such a "
            "model cannot be imported"
        )
    both = {**stated, **{key: value for key, value in scaling.items() if value is not None}}
    values: dict[str, Any] = {"rope_base": number_of(both, "rope_theta", default=record.rope_base)}
    part = number_of(both, _PART, default=1.0)
    if not record.is_partly_turned:
        check_choice({_PART: part}, _PART, (1.0,))
    elif not 0 < part <= 1:
        raise ConfigError(f"`{_PART}` in `config.json` must be above 0 and at most 1, not {part}")
    elif part != 1:
        values["turned_part"] = part
    return values | _scaling(kind, scaling, stated)


def _kind(scaling: Mapping[str, Any], record: Architecture) -> str:
    old, new = scaling.get("type"), scaling.get("rope_type")  # old files say `type`
    if old is not None and new is not None and old != new:
        raise ConfigError(
            f"`rope_type` ({new!r:.40}) and `type` ({old!r:.40}) must be equal in `config.json`; "
            "remove the wrong one"
        )
    if record.groups is Groups.WINDOWS and old is not None and new is None:
        raise ConfigError(
            f"`type` in `config.json` must be `rope_type` in {record.kind}: versions of "
            f"`transformers` read one or the other; write {old!r:.40} there"
        )
    kind = new if new is not None else old
    kind = "default" if kind is None else record.rope_also.get(str(kind), kind)
    check_choice({"rope_type": kind}, "rope_type", record.rope_kinds)
    return kind


def _scaling(kind: str, scaling: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "default":
        return {}
    if kind == "longrope":
        return longrope_of(scaling, stated)
    values = {"rope_scaling": RopeScaling(kind), "rope_factor": number_of(scaling, "factor")}
    if kind == "llama3":
        values |= {ours: number_of(scaling, theirs) for ours, theirs in _LLAMA3.items()}
        values["rope_sequence"] = size_of(scaling, _LENGTH)
    if kind == "yarn":
        values |= {
            ours: number_of(scaling, theirs, default=default)
            for ours, (theirs, default) in _YARN.items()
        }
        check_choice(scaling, "truncate", (True, False))  # null is false there
        values["rope_truncate"] = scaling.get("truncate", True)
        # Without it, versions of `transformers` take different lengths.
        values["rope_sequence"] = size_of(scaling, _LENGTH)
        default = _magnitude(scaling, values["rope_factor"])
        values["rope_magnitude"] = number_of(scaling, "attention_factor", default=default)
        if scaling.get("attention_factor") is not None and not values["rope_magnitude"] > 0:
            raise ConfigError(
                "`attention_factor` in `config.json` must be above 0, not "
                f"{values['rope_magnitude']}"
            )
    if kind == "dynamic":
        # Texts within it have the frequencies of the base alone.
        values["rope_sequence"] = size_of(stated, "max_position_embeddings")
    return values


def _magnitude(scaling: Mapping[str, Any], factor: float) -> float:
    """Return the factor of turned queries and keys by `mscale`; 0 without.

    Source: the published code of DeepSeek-V2, which `transformers` follows.
    """
    above, below = (number_of(scaling, name, default=0.0) for name in _MAGNITUDES)
    if not above or not below:  # one alone changes nothing
        return 0.0
    if min(above, below) < 0:
        raise ConfigError(
            f"`mscale` and `mscale_all_dim` in `config.json` must not be negative, and are "
            f"{above} and {below}"
        )
    growth = 0.1 * math.log(max(factor, 1.0))
    return (growth * above + 1) / (growth * below + 1)


def rope_fields_of(config: LlamaConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`, for readers of either form.

    `config` is that of `same_rope`.
    """
    part = {_PART: config.rotary_width / config.width} if config.rotary_width else {}
    kind, base = config.rope_scaling, {"rope_theta": config.rope_base, **part}
    if kind is RopeScaling.NONE:
        return {**base, "rope_scaling": None}
    if kind is RopeScaling.LONGROPE:
        return base | longrope_fields_of(config)
    scaling: dict[str, Any] = {"rope_type": kind.value, "factor": config.rope_factor}
    if kind is RopeScaling.LLAMA3:
        scaling |= {theirs: getattr(config, ours) for ours, theirs in _LLAMA3.items()}
    if kind is RopeScaling.YARN:
        scaling |= {theirs: getattr(config, ours) for ours, (theirs, _) in _YARN.items()}
        scaling |= {"attention_factor": config.rope_magnitude} if config.rope_magnitude else {}
        scaling |= {} if config.rope_truncate else {"truncate": False}
    if kind in (RopeScaling.LLAMA3, RopeScaling.YARN):
        scaling[_LENGTH] = config.rope_sequence
    return {**base, "rope_scaling": scaling}


def same_rope(config: LlamaConfig) -> LlamaConfig:
    """Return the same positions in the fewest fields: a base in place of NTK, unused ones fresh."""
    kind = config.rope_scaling
    base = config.ntk_base if kind is RopeScaling.NTK else config.rope_base
    unused = SCALING_NUMBERS - set(_NUMBERS.get(kind, ()))
    fresh: dict[str, Any] = {
        field.name: field.default for field in fields(LlamaConfig) if field.name in unused
    }
    kind = RopeScaling.NONE if kind is RopeScaling.NTK else kind
    width = 0 if config.rotary_width == config.width else config.rotary_width
    return replace(config, rope_scaling=kind, rope_base=base, rotary_width=width, **fresh)
