"""LongRoPE scaling in a `config.json` of Phi 3: two lists of divisors, and two lengths.

::

    max_position_embeddings 131072             the factor is the ratio: 32
    original_max_position_embeddings 4096      longer texts have the long divisors
    rope_scaling  {type, short_factor, long_factor}        the form of `transformers` 4: no more
    rope_parameters  the same, and factor, attention_factor, and the length again: that of 5

Source: `Phi3Config` and `modeling_rope_utils` of `transformers` 4.57 and 5.24.
"""

from collections.abc import Mapping
from typing import Any, Final

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.fields import number_of, size_of
from jaxpipe.models import LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling

_LENGTH: Final = "original_max_position_embeddings"
_DEFAULT_LENGTH: Final = 4096
_MOST: Final = "max_position_embeddings"
_DIVISORS: Final = {"rope_short": "short_factor", "rope_long": "long_factor"}
LONGROPE_OLD_KEYS: Final = frozenset(("type", *_DIVISORS.values()))
"""All keys of `rope_scaling`: `transformers` 4 takes no others."""
LONGROPE_KEYS: Final = frozenset((*_DIVISORS.values(), "factor", "attention_factor", _LENGTH))


def longrope_of(scaling: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `LlamaConfig` about a LongRoPE `scaling` in a file of `stated` fields.

    Raises:
        ConfigError: a number is missing, or no number, or there are two lengths.
    """
    length = size_of({_LENGTH: stated.get(_LENGTH, _DEFAULT_LENGTH)}, _LENGTH)
    if scaling.get(_LENGTH, length) != length:
        raise ConfigError(
            f"`{_LENGTH}` in `config.json` is {scaling[_LENGTH]!r:.40} in `rope_parameters`, and "
            f"{length} outside, where `transformers` reads it (without it {_DEFAULT_LENGTH}); "
            "state one value in both"
        )
    if length < 2:
        raise ConfigError(f"`{_LENGTH}` in `config.json` must be at least 2, not {length}")
    factor = number_of(scaling, "factor", default=size_of(stated, _MOST) / length)
    magnitude = number_of(scaling, "attention_factor", default=0.0)
    if scaling.get("attention_factor") is not None and not magnitude > 0:
        raise ConfigError(f"`attention_factor` in `config.json` must be above 0, not {magnitude}")
    return {
        "rope_scaling": RopeScaling.LONGROPE,
        "rope_factor": max(factor, 1.0),  # below 1 nothing is multiplied
        "rope_sequence": length,
        "rope_magnitude": magnitude,
        **{ours: _numbers(scaling, theirs) for ours, theirs in _DIVISORS.items()},
    }


def longrope_fields_of(config: LlamaConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`, which every version reads: the inverse.

    The factor is stated by the longest text alone, which is that of the factor and not
    `config.sequence`.
    """
    divisors = {theirs: list(getattr(config, ours)) for ours, theirs in _DIVISORS.items()}
    return {
        _MOST: round(config.rope_factor * config.rope_sequence),
        _LENGTH: config.rope_sequence,
        "rope_scaling": {"type": "longrope", **divisors},
    }


def _numbers(scaling: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = scaling.get(name)
    if not isinstance(values, list):
        raise ConfigError(f"`{name}` in `config.json` is {values!r:.80}; give a list of numbers")
    return tuple(number_of({name: value}, name) for value in values)
