"""Epochs of a run: steps from `train.epochs`, and how many epochs the steps of a run are.

An epoch is as many samples as all datasets of the run have. The headers of the datasets tell;
packed samples are counted from the ends of documents.
"""

from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.errors import ConfigError, DataError
from jaxpipe.runtime.data import dataset_folder
from jaxpipe.runtime.data.dataset.dataset import open_dataset
from jaxpipe.runtime.data.dataset.record import RECORD, read_record
from jaxpipe.runtime.data.order.packing import packed_spans
from jaxpipe.runtime.run_config import ComputeKind
from jaxpipe.runtime.storage.object_folder import Folder

if TYPE_CHECKING:  # which reads configurations, and asks here for their steps
    from jaxpipe.config.read import Config


def with_steps(config: "Config") -> "Config":
    """Return the configuration with `train.steps` in place of `train.epochs`.

    Islands take whole outer steps.

    Raises:
        ConfigError: a dataset is not there yet, or the steps are too many.
        DataError: one is damaged.
    """
    epochs = config.train.epochs
    if epochs is None:
        return config
    try:
        samples = _samples_in(config)
    except DataError as error:
        raise ConfigError(
            f"`train.epochs` ({epochs:g}) needs datasets that can be read, to count their samples; "
            f"prepare them first, or set `train.steps`: {error}"
        ) from None
    every = config.outer.every if config.outer.islands else 1
    steps = every * ceil(epochs * samples / config.train.batch / every)
    try:
        return replace(config, train=replace(config.train, steps=steps, epochs=None))
    except ValueError as error:
        raise ConfigError(
            f"`train.epochs` ({epochs:g}) must be of fewer samples, not {samples:,} an epoch: "
            f"{error}; lower it"
        ) from None


def epochs_line(config: "Config") -> str | None:
    """Return the steps of a run in epochs; None where no dataset is there, or none is needed."""
    folders = tuple(map(dataset_folder, config.data.folders))
    is_here = all(isinstance(folder, Path) and (folder / RECORD).exists() for folder in folders)
    if config.run.compute is ComputeKind.PACED or not is_here:
        return None
    samples, train = _samples_in(config), config.train
    epochs = train.steps * train.batch / max(samples, 1)
    return (
        f"{train.steps:,} steps of {train.batch:,} samples = {epochs:.3g} epochs of {samples:,} "
        "samples"
    )


def _samples_in(config: "Config") -> int:
    """Return the training samples of all datasets."""
    sequence = config.train.sequence or config.model.sequence
    folders = map(dataset_folder, config.data.folders)
    return sum(_samples_of(folder, sequence, pack=config.data.pack) for folder in folders)


def _samples_of(folder: Folder, sequence: int, *, pack: bool) -> int:
    record = read_record(folder)
    if record.labels is not None:
        return record.labels.train.num_tokens
    documents = open_dataset(folder, verify=False).documents if pack else None
    if documents is None:
        return record.train.num_tokens // sequence
    ends = documents.train
    return len(packed_spans(ends[:], sequence=sequence))
