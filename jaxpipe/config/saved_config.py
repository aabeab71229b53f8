"""The configuration in a checkpoint of any origin, checked against its tensors."""

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec

from jaxpipe.config.read import Config, config_from, model_from_tree
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.finetune import LoraConfig, is_adapter
from jaxpipe.finetune.merge import merged_tensors
from jaxpipe.models import ModelConfig, num_parameters
from jaxpipe.models.bottleneck_costs import bottleneck_parameters
from jaxpipe.runtime.checkpoint import Checkpoint, Read
from jaxpipe.runtime.checkpoint.checkpoint_files import files_of
from jaxpipe.runtime.metrics.records import METRICS_TENSOR
from jaxpipe.runtime.stage.optimizer_config import MOMENTS

_NO_PARAMETERS = (
    *(f"{name}." for name in MOMENTS),
    "momentum.",
    "pending.",
    "island.",
)
"""Prefixes of the names of tensors of optimizers, and of what the islands of an outer loop have."""


def saved_config(checkpoint: Checkpoint) -> Config:
    """Return the configuration of the run that saved a checkpoint.

    Raises:
        CheckpointError: it has none, or one that does not fit its tensors.
    """
    try:
        config = config_from(_tree(checkpoint))
    except ConfigError as error:
        raise _wrong(checkpoint, f"holds a configuration that is none: {error}") from error
    _check_size(checkpoint, config.model)
    return config


def saved_model(checkpoint: Checkpoint) -> ModelConfig:
    """Return the model in a checkpoint; other sections may be those of an older version.

    Raises:
        CheckpointError: it has none, or one that does not fit its tensors.
    """
    try:
        model = model_from_tree(_tree(checkpoint).get("model"))
    except ConfigError as error:
        raise _wrong(checkpoint, f"holds a model that is none: {error}") from error
    _check_size(checkpoint, model)
    return model


def saved_lora(checkpoint: Checkpoint) -> LoraConfig:
    """Return the adapters in a checkpoint.

    Raises:
        CheckpointError: its configuration of them is none.
    """
    try:
        return msgspec.convert(_tree(checkpoint).get("lora", {}), LoraConfig)
    except msgspec.ValidationError as error:
        raise _wrong(checkpoint, f"holds adapters that are none: {error}") from error


def has_adapters(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint holds adapters: that of an import may have none yet."""
    return any(map(is_adapter, checkpoint.tensors))


def read_merged(checkpoint: Checkpoint) -> Read:
    """Return what reads the tensors of a checkpoint, with its adapters merged into the kernels.

    Raises:
        CheckpointError: its configuration of adapters is none.
    """
    return merged_tensors(checkpoint.read, checkpoint.tensors.keys(), saved_lora(checkpoint))


def parameter_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the parameters of the model; those of adapters are not among them."""
    return tuple(name for name in _all_parameters(checkpoint) if not is_adapter(name))


def adapter_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the parameters of adapters."""
    return tuple(filter(is_adapter, _all_parameters(checkpoint)))


def _all_parameters(checkpoint: Checkpoint) -> Iterator[str]:
    for name in checkpoint.tensors:
        if not name.startswith(_NO_PARAMETERS) and name != METRICS_TENSOR:
            yield name


def _tree(checkpoint: Checkpoint) -> dict[str, Any]:
    tree = checkpoint.metadata.get("config")
    if not isinstance(tree, dict):
        raise _wrong(checkpoint, "lacks the configuration of its run")
    return tree


def _check_size(checkpoint: Checkpoint, model: ModelConfig) -> None:
    """Check that a model of this size was saved, before anything of that size is made."""
    entries = [checkpoint.tensors[name] for name in parameter_names(checkpoint)]
    saved, stated = (
        sum(prod(entry.shape) for entry in entries),
        num_parameters(model, layers=model.num_layers, embed=True, head=True)
        + bottleneck_parameters(model, layers=range(model.num_layers)),
    )
    if model.num_layers > len(entries) or saved != stated:
        raise _wrong(
            checkpoint,
            f"holds {saved:,} parameters, and its `config` describes a model of {stated:,}",
        )
    entries = [entry for entry in entries if entry.file not in checkpoint.elsewhere]
    files = {entry.file for entry in entries}
    try:
        on_disk = sum(files_of(checkpoint.folder).size(file) for file in files)
    except OSError as error:
        raise _wrong(checkpoint, f"lacks a file: {error.strerror}") from error
    if sum(entry.num_bytes for entry in entries) > on_disk:
        raise _wrong(checkpoint, f"lists more tensors than its files of {on_disk:,} bytes hold")


def _wrong(checkpoint: Checkpoint, problem: str) -> CheckpointError:
    return CheckpointError(
        f"a checkpoint holds a model and its configuration: {checkpoint.folder} {problem}; use one "
        "that `jaxpipe train` or `jaxpipe import` wrote"
    )
