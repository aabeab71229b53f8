"""The fields of PEFT's `adapter_config.json`: computed, known to change nothing, or refused.

Source: `LoraConfig` of PEFT 0.21, whose defaults missing fields have.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxpipe.errors import ConfigError
from jaxpipe.interchange.fields import (
    FieldFile,
    check_choice,
    check_known,
    number_of,
    size_of,
    switch_of,
)

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
PREFIX: Final = "base_model.model."
"""What all names of tensors begin with."""
WEIGHT: Final = ".weight"
ALL_LINEAR: Final = "all-linear"

_DEFAULT: Final = 8
"""Of the rank and of alpha."""
_LISTS: Final = "layers_pattern"
_MOST_RANK: Final = 2**16
_PLAIN: Final = re.compile(r"\w+(\.\w+)*")

FILE: Final = FieldFile(
    name=ADAPTER_CONFIG,
    inert=frozenset(
        (
            "auto_mapping",
            "base_model_name_or_path",
            "fan_in_fan_out",  # PEFT sets it by the class of the module
            "inference_mode",
            "lora_dropout",
            "megatron_core",
            "peft_version",
            "qalora_group_size",
            "revision",
            "runtime_config",
        )
    ),
    only={
        "peft_type": ("LORA",),
        "task_type": ("CAUSAL_LM", None),
        "bias": ("none", "all", "lora_only"),
        # Others change the parameters of the model, when PEFT loads the adapters again.
        "init_lora_weights": (True, False, "gaussian", "orthogonal"),
        "use_dora": (False,),
        "use_qalora": (False,),
        "use_bdlora": (None, False),
        "lora_bias": (False,),
        "ensure_weight_tying": (False,),
        "alora_invocation_tokens": (None,),
        "arrow_config": (None,),
        "corda_config": (None,),
        "eva_config": (None,),
        "kasa_config": (None,),
        "layer_replication": (None,),
        "loftq_config": ({}, None),
        "lora_ga_config": (None,),
        "megatron_config": (None,),
        "monteclora_config": (None,),
        "target_parameters": (None, []),
        "trainable_token_indices": (None,),
        "velora_config": (None,),
    },
)
_COMPUTED: Final = frozenset(
    (
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "modules_to_save",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFields:
    """What an `adapter_config.json` says of its adapters.

    Args:
        rank, alpha: those of modules that no pattern matches.
        ranks, alphas: regular expressions of names, each with the value of those that it matches;
            the first one counts.
        is_rank_stabilized: whether alpha is divided by the root of the rank (rsLoRA).
        targets: ends of the names of modules with adapters, or a regular expression.
        excluded: the same of modules without them.
        layers: the numbers of the layers with adapters; None for all.
        layer_lists: what the list of layers may be called; empty for any name.
        saved: ends of the names of modules that are in the files as a whole.
        dropout: the part of the inputs of adapters that PEFT drops in training.
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    is_rank_stabilized: bool
    targets: tuple[str, ...] | str
    excluded: tuple[str, ...] | str
    layers: tuple[int, ...] | None
    layer_lists: tuple[str, ...]
    saved: tuple[str, ...]
    dropout: float

    def scale(self, rank: int, alpha: float) -> float:
        """Return the factor of the products of adapters of a rank.

        Source: Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA".
        """
        return alpha / (rank**0.5 if self.is_rank_stabilized else rank)


def adapter_fields_of(fields: Mapping[str, Any], ignored: Collection[str] = ()) -> AdapterFields:
    """Return what the fields of an `adapter_config.json` say, without some `ignored`.

    Raises:
        ConfigError: a field is not known, or has a value that jaxpipe does not compute.
    """
    if "peft_type" not in fields:
        raise ConfigError(f"`peft_type` must be stated in `{ADAPTER_CONFIG}`; give LORA")
    # First, since other methods have other fields.
    check_choice(fields, "peft_type", FILE.only["peft_type"], file=FILE)
    check_known(fields, _COMPUTED, kind="adapters", ignored=ignored, file=FILE)
    targets = _names(fields, "target_modules", may_be_pattern=True)
    if not targets:
        raise ConfigError(
            f"`target_modules` must be stated in `{ADAPTER_CONFIG}`; give the names of the modules"
        )
    layers = _layers(fields)
    lists = _names(fields, _LISTS)
    # PEFT refuses empty lists there, too.
    is_stated = any(fields.get(name) is not None for name in ("layers_to_transform", _LISTS))
    if isinstance(targets, str) and is_stated:
        raise ConfigError(
            f"`layers_to_transform` and `layers_pattern` in `{ADAPTER_CONFIG}` must be left out "
            f"where `target_modules` ({targets!r:.80}) is no list"
        )
    if lists and fields.get("layers_to_transform") is None:
        raise ConfigError(
            f"`layers_pattern` in `{ADAPTER_CONFIG}` must come with `layers_to_transform`"
        )
    ranks, alphas = _table(fields, "rank_pattern"), _table(fields, "alpha_pattern")
    return AdapterFields(
        rank=_rank(fields, "r", default=_DEFAULT),
        alpha=_alpha(fields, "lora_alpha", default=_DEFAULT),
        ranks={key: _rank(ranks, key) for key in ranks},
        alphas={key: _alpha(alphas, key) for key in alphas},
        is_rank_stabilized=switch_of(fields, "use_rslora", default=False, file=FILE),
        targets=targets,
        excluded=_names(fields, "exclude_modules", may_be_pattern=True),
        layers=layers,
        layer_lists=_plain(lists),
        saved=_plain(_names(fields, "modules_to_save")),
        dropout=number_of(fields, "lora_dropout", default=0.0, file=FILE),
    )


def _rank(fields: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    rank = size_of(fields, name, default=default, file=FILE)
    if not 1 <= rank <= _MOST_RANK:
        raise ConfigError(
            f"`{name:.80}` in `{ADAPTER_CONFIG}` must be from 1 to {_MOST_RANK}, not {rank}"
        )
    return rank


def _alpha(fields: Mapping[str, Any], name: str, *, default: float | None = None) -> float:
    alpha = number_of(fields, name, default=default, file=FILE)
    if not alpha > 0:
        raise ConfigError(f"`{name:.80}` in `{ADAPTER_CONFIG}` must be above 0, not {alpha}")
    return alpha


def _table(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = fields.get(name)
    if table is not None and not isinstance(table, Mapping):
        raise ConfigError(f"`{name}` in `{ADAPTER_CONFIG}` must be a table, not {table!r:.80}")
    return table or {}


def _names(
    fields: Mapping[str, Any], name: str, *, may_be_pattern: bool = False
) -> tuple[str, ...] | str:
    value = fields.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        # PEFT takes a name alone for a list of one, where it takes no pattern.
        return value if may_be_pattern else (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ConfigError(
            f"`{name}` in `{ADAPTER_CONFIG}` must be a list of names, not {value!r:.80}"
        )
    return tuple(value)


def _plain(names: tuple[str, ...] | str) -> tuple[str, ...]:
    for name in names:
        if not _PLAIN.fullmatch(name):
            raise ConfigError(
                f"{name!r:.80} in `{ADAPTER_CONFIG}` must be the name of a module; jaxpipe reads "
                "patterns in `target_modules`, `exclude_modules`, `rank_pattern` and "
                "`alpha_pattern` alone"
            )
    return tuple(names)


def _layers(fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = fields.get("layers_to_transform")
    numbers = [value] if isinstance(value, int) else value
    if numbers is None or numbers == []:
        return None
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ConfigError(
            f"`layers_to_transform` in `{ADAPTER_CONFIG}` must be a list of whole numbers, not "
            f"{value!r:.80}"
        )
    return tuple(numbers)
