"""Checks of a run before any rank computes: data, checkpoints, and what excludes each other."""

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

from jaxpipe.config.check_data import check_data
from jaxpipe.config.check_order import check_same_order
from jaxpipe.config.check_outer import check_same_outer
from jaxpipe.config.checkpoint_place import check_place, place_of
from jaxpipe.config.read import Config
from jaxpipe.config.saved_config import saved_model
from jaxpipe.config.tuning import check_same_tuning
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.models.catalogue import FAMILY
from jaxpipe.runtime.checkpoint import Checkpoint, committed, newest_valid
from jaxpipe.runtime.data import dataset_folder, open_dataset
from jaxpipe.runtime.metrics.trackers import check_installed
from jaxpipe.runtime.run_config import AllowedChange
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig

_MAY_CHANGE = frozenset({"dropout", "compute_dtype"})
"""Fields that may differ between a checkpoint's model and the run that resumes from it."""


def check_run(
    config: Config,
    *,
    resume: bool,
    found: Checkpoint | None = None,
    allowed: Collection[AllowedChange] = (),
) -> Checkpoint | None:
    """Check all that a run will read before any rank computes; reads every byte once.

    Returns the newest intact checkpoint for a run that resumes, else None; `found` is that one, if
    it was found and verified before. What is `allowed` may differ from it.

    Raises:
        ConfigError: the vocabulary does not fit the model, a tracker is not installed, or the
            folder holds a run already.
        DataError: the dataset is missing, corrupt or too small.
        CheckpointError: there is no checkpoint to resume from, or it is of another model
            or of other samples.
    """
    check_installed(config.run.trackers)
    check_data(config, [open_dataset(dataset_folder(folder)) for folder in config.data.folders])
    check_place(config)
    store = place_of(config)
    if resume:
        checkpoint = found or newest_valid(store)
        check_model(config, checkpoint)
        check_same_outer(config, checkpoint)
        check_same_tuning(config, checkpoint)
        check_same_optimizer(config, checkpoint)
        _check_master_weights(config, checkpoint)
        check_same_order(config, checkpoint, allowed=allowed)
        return checkpoint
    if committed(store):
        field = "run.folder" if isinstance(store, Path) else "checkpoint.folder"
        raise ConfigError(
            f"`{field}` {store} holds checkpoints, which a run does not overwrite; continue with "
            "--resume, or name another folder"
        )
    return None


def check_same_optimizer(config: Config, checkpoint: Checkpoint) -> None:
    """Check that a run continues with the optimizer whose moments it has saved.

    Some optimizers have moments of the same names with other meanings, others none of them. An
    import, of step 0, has no moments, and any run may start from it.
    """
    saved = checkpoint.metadata.get("config", {}).get("optimizer", {})
    old, new = saved.get("name", OptimizerConfig().name), config.optimizer.name
    if checkpoint.step and old != new:
        raise CheckpointError(
            f"`optimizer.name` ({new}) must be as in the checkpoint {checkpoint.folder}, {old}: a "
            "run continues with the moments that it has saved; set it to that, or begin another "
            "run (`jaxpipe train --from`, with another `run.folder`)"
        )


def _check_master_weights(config: Config, checkpoint: Checkpoint) -> None:
    """Check that a run continues with the master weights that it has saved, or with none.

    An import, of step 0, has none, and any run may start from it.
    """
    saved = checkpoint.metadata.get("config", {}).get("optimizer", {})
    dtype, field = config.model.param_dtype, "master_weights"
    # A run of before there was the field had none.
    old = field in saved and OptimizerConfig(master_weights=saved[field]).has_master_weights(dtype)
    new = config.optimizer.has_master_weights(dtype)
    if checkpoint.step and old != new:
        old_words, new_words = (str(value).lower() for value in (old, new))
        raise CheckpointError(
            f"`optimizer.{field}` ({new_words}) must be as in the checkpoint {checkpoint.folder}, "
            f"{old_words}: a run continues with the state that it has saved; set it to that"
        )


def check_paced(config: Config, *, resume: bool) -> None:
    """Check that a paced run begins at its first step.

    Raises:
        ConfigError: it does not.
    """
    if resume:
        raise ConfigError(
            f"`--resume` needs a checkpoint, and a run with `run.compute` {config.run.compute} "
            "keeps none; leave it out"
        )


def check_model(config: Config, checkpoint: Checkpoint) -> None:
    """Check that a checkpoint is of the model of a configuration.

    Raises:
        CheckpointError: a field of it differs.
    """
    saved = saved_model(checkpoint)
    if type(saved) is not type(config.model):
        raise CheckpointError(
            f"`model.{FAMILY}` is that of {type(config.model).__name__}, and the checkpoint "
            f"{checkpoint.folder} has a {type(saved).__name__}: a run continues with its own "
            "model; give the configuration of its run"
        )
    for field in sorted({known.name for known in fields(saved)} - _MAY_CHANGE):
        old, new = getattr(saved, field), getattr(config.model, field)
        if old != new:
            raise CheckpointError(
                f"`model.{field}` ({new!r}) must be as in the checkpoint {checkpoint.folder}, "
                f"{old!r}: a run continues with its own model; set it to that"
            )
