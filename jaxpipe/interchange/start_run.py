"""Begin a run with given parameters: a checkpoint of step 0, for `--resume`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import (
    StreamedTensor,
    TensorEntry,
    begin_checkpoint,
    commit,
    latest,
    write_streamed_shard,
)

_FILE_BYTES: Final = 2**28
"""Size at which a file of the checkpoint is full; a larger tensor has a file of its own."""


def begin_run(folder: Path, tensors: Iterable[StreamedTensor], metadata: Mapping[str, Any]) -> Path:
    """Commit a checkpoint of step 0 with these parameters; return its folder.

    It has no moments: those of step 0 are fresh. One piece of a tensor is in memory at a time.

    Raises:
        CheckpointError: the folder holds checkpoints already, or cannot be written.
    """
    try:
        existing = latest(folder)
    # The normal case: there is no checkpoint to return.
    except CheckpointError:
        partial = begin_checkpoint(folder, step=0)
        entries: list[TensorEntry] = []
        for number, streamed in enumerate(_files(tensors)):
            name = f"parameters-{number}" if number else "parameters"
            entries += write_streamed_shard(partial, name, streamed)
        return commit(partial, entries, metadata)
    raise CheckpointError(
        f"{folder} holds {existing.name}, and a run does not overwrite another; name another folder"
    )


def _files(tensors: Iterable[StreamedTensor]) -> Iterator[list[StreamedTensor]]:
    """Yield the tensors of one file after the other."""
    streamed: list[StreamedTensor] = []
    size = 0
    for tensor in tensors:
        if streamed and size + tensor.num_bytes > _FILE_BYTES:
            yield streamed
            streamed, size = [], 0
        streamed.append(tensor)
        size += tensor.num_bytes
    if streamed:
        yield streamed
