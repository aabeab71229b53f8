"""Which modules of a model have adapters of PEFT, of which rank and with which factor.

Source: `check_target_module_exists`, `get_pattern_key` and `_set_trainable` of PEFT 0.21.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.name_patterns import names_matched
from jaxpipe.interchange.peft_fields import ALL_LINEAR, AdapterFields

Value = TypeVar("Value")

_LAYER: Final = re.compile(r".*?\.([^.]*)\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The rank of the adapter of a module, and the factor of its product."""

    rank: int
    scale: float


def adapted_modules(
    fields: AdapterFields, kernels: Collection[str], others: Collection[str]
) -> Mapping[str, Adapted]:
    """Return those of the modules that have adapters, in the order of `kernels`.

    Modules among the `others` may have none.

    Raises:
        ConfigError: another module has one, none has, or a pattern is none.
    """
    names = _with_containers([*kernels, *others])
    targeted = _targeted(fields, kernels, names)
    for name in names:
        if name in targeted and name not in kernels:
            raise ConfigError(
                f"`target_modules` ({fields.targets!r:.80}) matches {name}, and in jaxpipe "
                "products of layers alone have adapters; merge these into the model with PEFT's "
                "`merge_and_unload`, and import that"
            )
    if not targeted:
        raise ConfigError(
            f"`target_modules` ({fields.targets!r:.80}) must match a module of the model, and "
            f"matches none; give the model that it is for, which has {', '.join(list(kernels)[:3])}"
        )
    adapted = [name for name in kernels if name in targeted]
    ranks = _by_name(fields.ranks, adapted, field="rank_pattern")
    alphas = _by_name(fields.alphas, adapted, field="alpha_pattern")
    return {
        name: Adapted(
            rank=(rank := ranks.get(name, fields.rank)),
            scale=fields.scale(rank, alphas.get(name, fields.alpha)),
        )
        for name in adapted
    }


def is_saved(name: str, fields: AdapterFields) -> bool:
    """Return whether a module, or one around it, is in the files as a whole."""
    return any(around.endswith(fields.saved) for around in (*_around(name), name))


def _targeted(fields: AdapterFields, kernels: Collection[str], names: Collection[str]) -> set[str]:
    if isinstance(fields.targets, str):
        if fields.targets.lower() == ALL_LINEAR:
            targeted = set(kernels)
        else:
            pattern = fields.targets
            targeted = set(names_matched([pattern], names, field="target_modules")[pattern])
    else:
        targeted = {
            name
            for name in names
            if name in fields.targets
            or (_ends(name, fields.targets) and _is_in_layers(name, fields))
        }
    if isinstance(fields.excluded, str):
        pattern = fields.excluded
        targeted -= names_matched([pattern], names, field="exclude_modules")[pattern]
    else:
        targeted -= {name for name in names if _ends(name, fields.excluded)}
    # Modules that are saved have no adapters inside.
    return {name for name in targeted if not _has_part(name, fields.saved)}


def _ends(name: str, ends: tuple[str, ...]) -> bool:
    return name in ends or name.endswith(tuple(f".{end}" for end in ends))


def _has_part(name: str, parts: tuple[str, ...]) -> bool:
    return any(f".{part}." in f".{name}." for part in parts)


def _is_in_layers(name: str, fields: AdapterFields) -> bool:
    if fields.layers is None:
        return True
    match = _LAYER.match(name)
    if match is None:
        return False
    layer_list, number = match.groups()
    is_named = not fields.layer_lists or layer_list in fields.layer_lists
    return is_named and int(number) in fields.layers


def _by_name(
    patterns: Mapping[str, Value], names: Collection[str], *, field: str
) -> dict[str, Value]:
    """Return the value of each name that a pattern matches: that of the first one."""
    with_ends = {f"(.*\\.)?({pattern})": value for pattern, value in patterns.items()}
    matched = names_matched(with_ends, names, field=field)
    by_name: dict[str, Value] = {}
    for pattern, value in with_ends.items():
        for name in matched[pattern]:
            by_name.setdefault(name, value)
    return by_name


def _with_containers(names: Collection[str]) -> tuple[str, ...]:
    """Return the names of modules and of those that contain them, each once."""
    return tuple(dict.fromkeys([*names, *(around for name in names for around in _around(name))]))


def _around(name: str) -> Iterator[str]:
    parts = name.split(".")
    for length in range(1, len(parts)):
        yield ".".join(parts[:length])
