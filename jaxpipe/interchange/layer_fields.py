"""Layers that differ in a `config.json`: groups of equal layers and one other, as in the model.

::

    Gemma 3     sliding_window_pattern 6: five layers with the window, which have their own base of
                rotary positions, and one without
    SmolLM 3    no_rope_layer_interval 4: three layers with rotary positions, and one without
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.architecture_record import Architecture, Groups
from jaxpipe.interchange.fields import number_of, size_of
from jaxpipe.interchange.rope_fields import SCALING_NUMBERS
from jaxpipe.models import LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling

_LOCAL: Final = "sliding_attention"
_LAYER_TYPES: Final = ("full_attention", _LOCAL)
_TYPES: Final = "layer_types"
_PATTERN: Final = "sliding_window_pattern"
_BASE: Final = "rope_local_base_freq"
_NO_ROPE: Final = "no_rope_layers"
_INTERVAL: Final = "no_rope_layer_interval"
_DEFAULT_PATTERN: Final = 6
_DEFAULT_WINDOW: Final = 4096
_DEFAULT_INTERVAL: Final = 4
_DEFAULT_BASE: Final = 10_000.0


def grouped(
    settings: Mapping[str, Any], stated: Mapping[str, Any], record: Architecture
) -> dict[str, Any]:
    """Return the settings of a `LlamaConfig` of equal layers, with what its groups are.

    Raises:
        ConfigError: the layers are no groups of which the last one differs.
    """
    if record.groups is None:
        return dict(settings)
    depth = settings["depth"]
    if record.groups is Groups.POSITIONS:
        period = _period(_turned(stated, depth), stated, _NO_ROPE)
        if period == 0:
            raise ConfigError(
                f"`{_NO_ROPE}` in `config.json` must have a layer with rotary positions; such a "
                "model cannot be imported"
            )
        groups = {"alternating": True, "period": period, "unturned": True}
        return {**settings, **(groups if period > 1 else {})}
    period = _period(_windowed(stated, depth), stated, _TYPES)
    if period == 0:  # no layer has a window
        return {**settings, "window": 0}
    base = settings.get("local_base") or number_of(stated, _BASE, default=_DEFAULT_BASE)
    if period > 1:
        return {**settings, "local_base": base, "alternating": True, "period": period}
    unscaled = {"rope_base": base, "rope_scaling": RopeScaling.NONE}
    rest = {name: value for name, value in settings.items() if name not in SCALING_NUMBERS}
    return {**rest, **unscaled, "local_base": 0.0}


def layer_fields_of(config: LlamaConfig, record: Architecture) -> dict[str, Any]:
    """Return the fields of a `config.json` about layers that differ: the inverse."""
    if record.groups is None:
        return {}
    interval = config.period if config.alternating else config.depth + 1
    if record.groups is Groups.POSITIONS:
        layers = [int((number + 1) % interval != 0) for number in range(config.depth)]
        return {_NO_ROPE: layers, _INTERVAL: interval}
    types = [_LAYER_TYPES[window > 0] for window in config.windows] * config.num_layers
    base = config.local_base or config.rope_base
    # Of no layer, and `transformers` wants a number.
    window = {} if config.window else {"sliding_window": _DEFAULT_WINDOW}
    return {**window, _TYPES: types, _PATTERN: interval, _BASE: base}


def _period(differs: Sequence[bool], stated: Mapping[str, Any], name: str) -> int:
    """Return the layers of a group: 1 if all are as the first ones, 0 if all are as the last one.

    `differs` is false for the last layer of each group, and true for others.
    """
    if all(differs) or not any(differs):
        return int(all(differs))
    period = differs.index(False) + 1
    if list(differs) != [(number + 1) % period != 0 for number in range(len(differs))] or (
        len(differs) % period
    ):
        raise ConfigError(
            f"`num_hidden_layers` ({len(differs)}) in `config.json` must be groups of {period} "
            f"layers, of which the last differs, and `{name}` is {stated.get(name)!r:.80}: all "
            "layers of a stage are equal; such a model cannot be imported"
        )
    return period


def _windowed(stated: Mapping[str, Any], depth: int) -> list[bool]:
    """Return whether each layer has the window."""
    types = stated.get(_TYPES)
    if types is None:
        pattern = _at_least_1(stated, _PATTERN, _DEFAULT_PATTERN)
        return [(number + 1) % pattern != 0 for number in range(depth)]
    is_list = isinstance(types, list) and len(types) == depth
    if not is_list or any(name not in _LAYER_TYPES for name in types):
        raise ConfigError(
            f"`{_TYPES}` in `config.json` must be {depth} of {' and '.join(_LAYER_TYPES)}, as many "
            f"as `num_hidden_layers`, not {types!r:.80}"
        )
    return [name == _LOCAL for name in types]


def _turned(stated: Mapping[str, Any], depth: int) -> list[bool]:
    """Return whether each layer has rotary positions."""
    numbers = stated.get(_NO_ROPE)
    if numbers is None:
        interval = _at_least_1(stated, _INTERVAL, _DEFAULT_INTERVAL)
        return [(number + 1) % interval != 0 for number in range(depth)]
    is_list = isinstance(numbers, list) and len(numbers) == depth
    if not is_list or any(type(number) is not int or number not in (0, 1) for number in numbers):
        raise ConfigError(
            f"`{_NO_ROPE}` in `config.json` must be {depth} numbers 0 or 1, as many as "
            f"`num_hidden_layers`, not {numbers!r:.80}"
        )
    return [number == 1 for number in numbers]


def _at_least_1(stated: Mapping[str, Any], name: str, default: int) -> int:
    value = size_of({name: stated.get(name, default)}, name)
    if value < 1:
        raise ConfigError(f"`{name}` in `config.json` must be at least 1, not {value}")
    return value
