"""Layers that differ in a `config.json`: full ones among others, which have a window or positions.

::

    Gemma 2     every other layer has the window
    Gemma 3     sliding_window_pattern 6: five layers with the window, which have their own base of
                rotary positions, and one without
    OLMo 3      three layers with the window, whose positions are not scaled, and one without
    Qwen        max_window_layers 28: layers behind the first 28 have the window
    SmolLM 3    no_rope_layer_interval 4: three layers with rotary positions, and one without

A list of layers (`layer_types`, `no_rope_layers`) says another order. Layers that are groups of
which the last one is full are groups in the model, too (`LlamaConfig.alternating`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.architecture_record import Architecture, Groups
from jaxpipe.interchange.fields import number_of, size_of, switch_of
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
_SWITCH: Final = "use_sliding_window"
_FIRST: Final = "max_window_layers"
_DEFAULT_FIRST: Final = 28
_DEFAULT_WINDOW: Final = 4096
_DEFAULT_INTERVALS: Final = {Groups.PAIRS: 2, Groups.WINDOWS: 6, Groups.POSITIONS: 4}
_DEFAULT_BASE: Final = 10_000.0


def grouped(
    settings: Mapping[str, Any], stated: Mapping[str, Any], record: Architecture
) -> dict[str, Any]:
    """Return the settings of a `LlamaConfig` with what differs between its layers.

    Raises:
        ConfigError: layers are stated in another form.
    """
    depth = settings["depth"]
    if record.groups is None or record.groups is Groups.POSITIONS:
        _check_types(stated, depth, is_local=settings.get("window", 0) > 0)
    if record.groups is None:
        return dict(settings)
    if record.groups is Groups.POSITIONS:
        full = _full(_turned(stated, record, depth))
        return {**settings, **({"unturned": True} if full else {}), **_layout(full, depth)}
    full = _full(_windowed(settings, stated, record))
    if len(full) == depth:  # no layer has a window
        return {**settings, "window": 0}
    if record.groups is not Groups.WINDOWS:
        return {**settings, **_layout(full, depth)}
    base = settings.get("local_base") or number_of(stated, _BASE, default=_DEFAULT_BASE)
    if full:
        return {**settings, "local_base": base, **_layout(full, depth)}
    unscaled = {"rope_base": base, "rope_scaling": RopeScaling.NONE}
    rest = {name: value for name, value in settings.items() if name not in SCALING_NUMBERS}
    return {**rest, **unscaled, "local_base": 0.0}


def same_layers(config: LlamaConfig) -> LlamaConfig:
    """Return the same layers as an import has them: as groups, if they are some."""
    if not config.full:
        return config
    layout = _layout(config.full, config.depth)
    num_layers = config.depth // layout.get("period", 1)
    absent = {"alternating": False, "period": 2, "full_layers": ()}
    return replace(config, **{**absent, **layout}, num_layers=num_layers)


def layer_fields_of(config: LlamaConfig, record: Architecture) -> dict[str, Any]:
    """Return the fields of a `config.json` about layers that differ: the inverse."""
    if record.groups is None:
        return {}
    depth, full = config.depth, set(config.full)
    if not full and (config.unturned if record.groups is Groups.POSITIONS else not config.window):
        full = set(range(depth))
    interval = _interval(full, depth)
    if record.groups is Groups.POSITIONS:
        layers = [int(number not in full) for number in range(depth)]
        return {_NO_ROPE: layers, **({} if interval is None else {_INTERVAL: interval})}
    types = [_LAYER_TYPES[number not in full] for number in range(depth)]
    if record.groups is Groups.LATER:
        return {_SWITCH: config.window > 0, _TYPES: types}
    # Of no layer, and `transformers` wants a number.
    fields: dict[str, Any] = {} if config.window else {"sliding_window": _DEFAULT_WINDOW}
    fields[_TYPES] = types
    if record.groups is Groups.WINDOWS:
        fields |= {_BASE: config.local_base or config.rope_base}
        fields |= {} if interval is None else {_PATTERN: interval}
    return fields


def _full(differs: Sequence[bool]) -> tuple[int, ...]:
    return tuple(number for number, other in enumerate(differs) if not other)


def _layout(full: tuple[int, ...], depth: int) -> dict[str, Any]:
    """Return the fields of a `LlamaConfig` that say which of its layers are full.

    >>> _layout((2, 5), 6), _layout((2, 5), 7), _layout((), 7)
    ({'alternating': True, 'period': 3}, {'full_layers': (2, 5)}, {})
    """
    if len(full) in (0, depth):
        return {}
    interval = _interval(set(full), depth)
    # One group is no layer that a plan could cut.
    if interval is None or depth % interval or depth == interval:
        return {"full_layers": full}
    return {"alternating": True, "period": interval}


def _interval(full: set[int], depth: int) -> int | None:
    """Return the number of which each multiple is that of a full layer, counted from 1.

    None if there is no such number.
    """
    interval = min(full, default=depth) + 1
    return interval if full == set(range(interval - 1, depth, interval)) else None


def _windowed(
    settings: Mapping[str, Any], stated: Mapping[str, Any], record: Architecture
) -> list[bool]:
    """Return whether each layer has the window."""
    depth, types = settings["depth"], stated.get(_TYPES)
    if record.groups is Groups.LATER:
        has_window = switch_of({_SWITCH: False, **stated}, _SWITCH) and settings["window"] > 0
        if not has_window:
            _check_types(stated, depth, is_local=False)
            return [False] * depth
    if types is not None:
        return [name == _LOCAL for name in _types(types, depth)]
    if record.groups is Groups.LATER:
        first = size_of({_FIRST: _DEFAULT_FIRST, **stated}, _FIRST)
        return [number >= first for number in range(depth)]
    return _others(stated, _PATTERN, record, depth)


def _others(stated: Mapping[str, Any], name: str, record: Architecture, depth: int) -> list[bool]:
    """Return whether each layer is none of those at the interval of a field."""
    assert record.groups is not None, record
    default = _DEFAULT_INTERVALS[record.groups]
    interval = _at_least_1(stated if name in record.known else {}, name, default)
    return [(number + 1) % interval != 0 for number in range(depth)]


def _types(types: Any, depth: int) -> list[str]:
    is_list = isinstance(types, list) and len(types) == depth
    if not is_list or any(name not in _LAYER_TYPES for name in types):
        raise ConfigError(
            f"`{_TYPES}` in `config.json` must be {depth} of {' and '.join(_LAYER_TYPES)}, as many "
            f"as `num_hidden_layers`, not {types!r:.80}"
        )
    return types


def _check_types(stated: Mapping[str, Any], depth: int, *, is_local: bool) -> None:
    types, name = stated.get(_TYPES), _LAYER_TYPES[is_local]
    if types is not None and set(_types(types, depth)) != {name}:
        raise ConfigError(
            f"`{_TYPES}` in `config.json` must be {name} for each layer, as the other fields say, "
            f"not {types!r:.80}; such a model cannot be imported"
        )


def _turned(stated: Mapping[str, Any], record: Architecture, depth: int) -> list[bool]:
    """Return whether each layer has rotary positions."""
    numbers = stated.get(_NO_ROPE)
    if numbers is None:
        return _others(stated, _INTERVAL, record, depth)
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
