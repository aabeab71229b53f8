"""Begin a run with the parameters of another one, or of an import: `jaxpipe train --from FOLDER`.

::

    FOLDER/checkpoints ──► parameters ──► run.folder: a checkpoint of step 0

Adapters stay if the section `lora` is that of the other run, and are merged otherwise. The run then
resumes from step 0, with fresh moments, and reads its data from the first sample.
"""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from jaxpipe.config import (
    Config,
    adapter_names,
    check_model,
    check_source_tokenizer,
    continues_adapters,
    describe,
    has_adapters,
    parameter_names,
    place_in,
    place_of,
    read_merged,
)
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange import begin_run, keep_beside, keep_record, read_record
from jaxpipe.outer import OuterConfig
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.runtime.checkpoint import Checkpoint, Read, StreamedTensor
from jaxpipe.runtime.checkpoint.newest_valid import newest_valid
from jaxpipe.runtime.checkpoint.stores import committed
from jaxpipe.runtime.data.dataset.tokenizer_config import TOKENIZER
from jaxpipe.runtime.data.dataset.tokenizer_files import (
    read_tokenizer_files,
    write_tokenizer_files,
)


def check_start_from(config: Config, source: Path) -> Checkpoint:
    """Return the newest intact checkpoint of a run, if the configuration's run can start from it.

    A run starts in a folder without checkpoints, or in that of the import itself. Datasets that are
    there have the tokenizer of `source`.

    Raises:
        ConfigError: the run has checkpoints of its own, or keeps them in object storage, or its
            datasets have another tokenizer.
        CheckpointError: `source` has no intact checkpoint, or one of another model.
    """
    try:
        checkpoint = newest_valid(place_in(source))
    except CheckpointError as error:
        raise CheckpointError(f"`--from` {source} is no run to start from: {error}") from None
    check_model(config, checkpoint)
    store, folder = place_of(config), Path(config.run.folder)
    if not isinstance(store, Path):
        raise ConfigError(
            "`--from` starts runs with checkpoints in their own folder, and `checkpoint.folder` "
            f"is {store}; leave it out"
        )
    if committed(store) and (folder.resolve() != source.resolve() or checkpoint.step):
        raise ConfigError(
            f"`run.folder` {store} holds checkpoints, which `--from` does not overwrite; continue "
            "with --resume, or name another folder"
        )
    check_source_tokenizer(config, source)
    return checkpoint


def start_from(config: Config, source: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of step 0 from which the run of a configuration resumes.

    `checkpoint` is that of `source`, from `check_start_from`. One tensor is in memory at a time.

    Raises:
        ConfigError, CheckpointError: the folder is in use, holds checkpoints, or cannot be written.
    """
    folder = Path(config.run.folder)
    with locked(folder):
        names, read = parameter_names(checkpoint), read_merged(checkpoint)
        if stays := continues_adapters(config, checkpoint):
            names, read = (*names, *adapter_names(checkpoint)), checkpoint.read
        tensors = (
            StreamedTensor(name, checkpoint.tensors[name].shape, partial(_pieces, read, name))
            for name in names
        )
        # The parameters of one model: islands begin with them, and have nothing of their own yet.
        begin_run(folder, tensors, describe(dataclasses.replace(config, outer=OuterConfig())))
        keep_beside(source, folder)
        if (source / TOKENIZER).is_file():  # with which datasets in object storage are compared
            write_tokenizer_files(read_tokenizer_files(source), folder)
        if (record := read_record(source)) is not None:
            # New adapters would be for parameters that are no longer those of the import.
            is_import = checkpoint.step == 0 and not has_adapters(checkpoint)
            keep_record(record if stays or is_import else replace(record, base=None), folder)


def _pieces(read: Read, name: str) -> tuple[np.ndarray]:
    return (np.asarray(read([name])[name], np.float32, order="C"),)
