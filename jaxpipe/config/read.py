"""Read a configuration: one TOML file, with every key and value checked.

Each section is a frozen dataclass next to the code that it configures; `Config` composes them.
"""

import dataclasses
import difflib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import msgspec

from jaxpipe.config.epochs import with_steps
from jaxpipe.errors import ConfigError
from jaxpipe.finetune import LoraConfig
from jaxpipe.foreign_file import read_text, reason_of
from jaxpipe.models import ModelConfig, config_type, load_preset
from jaxpipe.outer import OuterConfig, QuorumConfig
from jaxpipe.plan import PlanConfig
from jaxpipe.runtime.config import (
    CheckpointConfig,
    CommConfig,
    SampleConfig,
    TraceConfig,
    TrainConfig,
)
from jaxpipe.runtime.data_config import DataConfig
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.run_config import PacedConfig, RunConfig
from jaxpipe.runtime.stage.optimizer_config import LossScaleConfig, OptimizerConfig
from jaxpipe.topo.plain_types import in_plain_words
from jaxpipe.topo.toml_text import parse_toml

_log = logging.getLogger(__name__)

_MODEL, _TRAIN = "model", "train"
_LENGTHS = ("steps", "epochs")

MOST_TOML_BYTES = 2**24
"""Of a configuration."""

_DESCRIPTOR = re.compile(r"/(dev/(fd|stdin|stdout|stderr)|proc)(/|$)")
_FILES = (
    *(("plan", "file"), ("plan", "cluster"), ("plan", "schedule_file")),
    *(("paced", "profile"), ("paced", "profile_of")),
)
"""Fields with paths of files that the processes of a run read."""

BESIDE_FILE = ("file", "cluster", "codecs", "replan", "drift_factor", "drift_steps")
"""The fields of the section `plan` that a plan file does not decide."""

FREE = "free"
"""The value that leaves a field of `FREE_FIELDS` to the planner, as if it were not set: for
`--set plan.stages=free`, where a file sets the field."""
FREE_FIELDS = {
    "plan": (
        *("devices", "stages", "replicas", "microbatch", "schedule", "chunks", "all_reduce"),
        *("cut", "cuts", "shares", "warmup", "boundaries"),
    ),
    "train": ("remat",),
}
"""The fields of each section that the planner decides, if the configuration does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The complete configuration; `model` is the preset with the changes of the file."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    plan: PlanConfig = field(default_factory=PlanConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    outer: OuterConfig = field(default_factory=OuterConfig)
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    paced: PacedConfig = field(default_factory=PacedConfig)


def load_config(
    path: str | Path,
    settings: Sequence[str] = (),
    *,
    notice: Callable[[str], object] | None = _log.warning,
) -> Config:
    """Read a TOML file, apply settings like `train.steps=10`, and check every field.

    Where `plan.file` overrides other fields of the section `plan`, `notice` is called with a line
    that names them.

    Epochs become steps, for which the datasets must be there.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is wrong.
    """
    _refuse_descriptor(str(path), f"the configuration {path}")
    try:
        tree = parse_toml(read_text(Path(path), most_bytes=MOST_TOML_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {reason_of(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    config = _config(tree, settings)
    for section, name in _FILES:
        value = getattr(getattr(config, section), name)
        for text in (value,) if isinstance(value, str) else value or ():
            _refuse_descriptor(text.rpartition("=")[2], f"`{section}.{name}` {text}")
    config = with_steps(config)
    overridden = _overridden(tree.get("plan", {}))
    if overridden and notice is not None:
        given = ", ".join(f"`plan.{key}` = {value!r:.80}" for key, value in overridden.items())
        notice(f"`plan.file` {config.plan.file} has the whole plan: it overrides {given}")
    return config


def _refuse_descriptor(path: str, what: str) -> None:
    """Refuse what this process has open, such as a pipe: all processes of a run read its files.

    Raises:
        ConfigError: the path names a descriptor of a process.
    """
    if _DESCRIPTOR.match(os.path.abspath(path)):
        raise ConfigError(
            f"{what} is open in this process alone, and other processes of a run read it, too; "
            "write it to a file, and name that"
        )


def config_of_settings(settings: Sequence[str]) -> Config:
    """Return the configuration of settings alone, to plan a run that has no file yet.

    Its folders are placeholders.

    Raises:
        ConfigError: a key or a value is wrong, or no setting names a model.
    """
    return with_steps(_config({"run": {"folder": "run"}, "data": {"folder": "data"}}, settings))


def _config(tree: dict[str, Any], settings: Sequence[str]) -> Config:
    train = tree.get(_TRAIN)
    if isinstance(train, dict) and set(_LENGTHS) <= set(train):
        raise ConfigError(
            f"`train.epochs` ({train['epochs']!r:.80}) takes the place of `train.steps` "
            f"({train['steps']!r:.80}); remove one of them"
        )
    for setting in settings:  # in order: a later one wins
        _apply(tree, setting)
        _remove_other_length(tree, setting)
    return config_from(tree)


def _remove_other_length(tree: Mapping[str, Any], setting: str) -> None:
    """Remove the steps of the file where a setting has epochs, and the other way round."""
    section, _, key = setting.partition("=")[0].strip().rpartition(".")
    if section == _TRAIN and key in _LENGTHS:
        for other in set(_LENGTHS) - {key}:
            tree[_TRAIN].pop(other, None)


def config_from(tree: Mapping[str, Any]) -> Config:
    """Return the configuration in nested dictionaries, as read from TOML.

    A plan file overrides the fields that describe a plan: they are checked, and left out.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    _refuse_unknown(tree, Config, "")
    sections = {f.name: f.type for f in dataclasses.fields(Config)}
    for required in ("run", "model", "data"):
        if required not in tree:
            raise ConfigError(f"`{required}` is missing; add the section [{required}]")
    config = Config(**{name: _section(name, sections[name], tree[name]) for name in tree})
    if config.model.classes:  # labels are no text
        silent = dataclasses.replace(config.sample, tokens=0)
        config = dataclasses.replace(config, sample=silent)
    if config.plan.file is None:
        return config
    overrides = {name: getattr(config.plan, name) for name in BESIDE_FILE}
    return dataclasses.replace(config, plan=PlanConfig(**overrides))


def model_from_tree(values: Any) -> ModelConfig:
    """Return the model of the section `model`, with or without a preset.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    return _section(_MODEL, ModelConfig, values)


def to_tree(config: Config) -> dict[str, Any]:
    """Return the configuration as nested dictionaries: the inverse of `config_from`."""
    tree = msgspec.to_builtins(config)
    # Its other fields have their defaults, which say nothing about the plan in the file.
    if config.plan.file is not None:
        tree["plan"] = {key: tree["plan"][key] for key in BESIDE_FILE}
    return tree


def _section(name: str, section: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"`{name}` must be a section, is {values!r:.80}; write [{name}]")
    if name == _MODEL:
        values = _with_preset(values)  # first: `preset` is no field
        section = _model_section(values)
    _refuse_unknown(values, section, f"{name}.")
    for table, kind in _tables(section):
        rows = values.get(table)
        for number, row in enumerate(rows if isinstance(rows, list | tuple) else ()):
            if isinstance(row, dict):
                _refuse_unknown(row, kind, f"{name}.{table}[{number}].")
    free = FREE_FIELDS.get(name, ())
    values = {key: value for key, value in values.items() if key not in free or value != FREE}
    try:
        return msgspec.convert(values, section)
    except msgspec.ValidationError as error:
        # msgspec says: MESSAGE - at `$.field`.
        message, _, where = in_plain_words(str(error)).partition(" - at `$")
        if not where:  # raised by the section itself, which names the field
            raise ConfigError(_of_section(name, message)) from error
        key = where.rstrip("`")
        message += _choices(section, key) if message.startswith("Invalid enum") else ""
        raise ConfigError(f"`{name}{key}`: {message}" + _value_at(values, key)) from error


def _of_section(name: str, message: str) -> str:
    """Return the message of a section with the name of that section before its field."""
    return f"`{name}.{message[1:]}" if message.startswith("`") else f"[{name}]: {message}"


def _tables(section: Any) -> list[tuple[str, Any]]:
    """Return the fields of a section that are lists of tables, with the type of a table."""
    section_types = ((f.name, get_args(f.type)) for f in dataclasses.fields(section))
    return [(name, types[0]) for name, types in section_types if types and is_dataclass(types[0])]


def _overridden(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields that a plan file overrides."""
    if not plan.get("file"):
        return {}
    given = ((key, value) for key, value in plan.items() if value != FREE)
    return {key: value for key, value in given if key not in BESIDE_FILE}


def _with_preset(values: dict[str, Any]) -> dict[str, Any]:
    if "preset" not in values:
        return values
    changes = {key: value for key, value in values.items() if key != "preset"}
    if not isinstance(values["preset"], str):
        raise ConfigError(f"`model.preset` must be a name, is {values['preset']!r:.80}")
    try:
        fields = {**load_preset(values["preset"]), **changes}
    except ValueError as error:
        raise ConfigError(_of_section(_MODEL, str(error))) from error
    _refuse_unknown(values, _model_section(fields), "model.", also=("preset",))
    return fields


def _model_section(values: Mapping[str, Any]) -> Any:
    """Return the type of the section `model`, by its family."""
    try:
        return config_type(values)
    except ValueError as error:
        raise ConfigError(_of_section("model", str(error))) from error


def _refuse_unknown(
    values: Mapping[str, Any], section: Any, prefix: str, *, also: tuple[str, ...] = ()
) -> None:
    known = [*also, *(f.name for f in dataclasses.fields(section))]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)  # always one
            raise ConfigError(
                f"unknown key `{prefix}{key}`; did you mean `{prefix}{near[0]}`? "
                f"(known: {', '.join(known)})"
            )


def _value_at(values: Mapping[str, Any], key: str) -> str:
    name = key.removeprefix(".")
    return f"; it is {values[name]!r:.80}" if name in values else ""


def choices_of(section: Any, name: str) -> tuple[str, ...]:
    """Return the values of an enumeration that a field, or each entry of its list, can take.

    >>> choices_of(RunConfig, "survive"), choices_of(RunConfig, "seed")
    (('restart', 'shrink'), ())
    """
    kind = next(f.type for f in dataclasses.fields(section) if f.name == name)
    # The type itself, or what an optional or a tuple is made of.
    return tuple(
        value.value
        for argument in (kind, *get_args(kind))
        if isinstance(argument, type) and issubclass(argument, StrEnum)
        for value in argument
    )


def _choices(section: Any, key: str) -> str:
    choices = choices_of(section, key.removeprefix(".").partition("[")[0])
    return f"; choose from {', '.join(choices)}" if choices else ""


def _apply(tree: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key or not sections:
        raise ConfigError(f"`--set` takes section.key=value, not {setting!r}")
    try:
        setting.encode()
    except UnicodeEncodeError:  # bytes of a command that are no text: no file can keep them
        raise ConfigError(f"`--set` takes text in UTF-8, and {setting!r:.80} is none") from None
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"`--set {setting}`: `{section}` is a value, not a section")
    try:
        # TOML, or else a string without quotes: `run.folder=runs/a` needs none.
        tree[key] = parse_toml(f"value = {text}")["value"]
    except ValueError:
        # TOML has no integers of more than 64 bits; the field that is given one states its range.
        digits = text.strip().removeprefix("-")
        is_integer = digits.isascii() and digits.isdecimal()
        tree[key] = int(text) if is_integer else text
