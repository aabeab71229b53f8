"""Begin a run with given parameters: a checkpoint of step 0, for `--resume`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import TensorEntry, begin_checkpoint, commit, latest, write_shard

_FILE_BYTES: Final = 2**28
"""Size at which a file of the checkpoint is full; a larger tensor has a file of its own."""


def begin_run(
    folder: Path, tensors: Iterable[tuple[str, np.ndarray]], metadata: Mapping[str, Any]
) -> Path:
    """Commit a checkpoint of step 0 with these parameters; return its folder.

    It has no moments: those of step 0 are fresh. Tensors are taken one by one; those of one file of
    the checkpoint are in memory at a time, twice while the file is verified.

    Raises:
        CheckpointError: the folder holds checkpoints already, or cannot be written.
    """
    try:
        existing = latest(folder)
    # The normal case: there is no checkpoint to return.
    except CheckpointError:
        partial = begin_checkpoint(folder, step=0)
        entries: list[TensorEntry] = []
        for number, held in enumerate(_files(tensors)):
            name = f"parameters-{number}" if number else "parameters"
            entries += write_shard(partial, name, held)
        return commit(partial, entries, metadata)
    raise CheckpointError(
        f"a run does not overwrite another: {folder} holds {existing.name}; name another folder"
    )


def _files(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the tensors of one file after the other."""
    held: dict[str, np.ndarray] = {}
    size = 0
    for name, tensor in tensors:
        if held and size + tensor.nbytes > _FILE_BYTES:
            yield held
            held, size = {}, 0
        held[name] = tensor
        size += tensor.nbytes
    if held:
        yield held
