"""A checkpoint, committed as a whole and read tensor by tensor."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.folders import put_in_place, step_of
from jaxpipe.runtime.checkpoint.manifest import (
    Manifest,
    TensorEntry,
    corrupt,
    read_manifest,
    write_manifest,
)
from jaxpipe.runtime.checkpoint.shard import check_shard, read_shard
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An open checkpoint: `tensors` lists its contents by name; none of them is read yet."""

    folder: Path
    step: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read some tensors, each verified against its checksum.

        Raises:
            CheckpointError: one is not in the checkpoint, or a file is missing or corrupt.
        """
        entries: dict[str, list[TensorEntry]] = defaultdict(list)
        for name in names:
            if name not in self.tensors:
                raise CheckpointError(
                    f"`checkpoint` must contain the tensor {name}; {self.folder} does not; resume"
                    " with the model and optimizer that saved it"
                )
            entries[self.tensors[name].file].append(self.tensors[name])
        tensors: dict[str, np.ndarray] = {}
        for file, of_file in entries.items():
            tensors |= read_shard(self.folder, file, of_file)
        return tensors


def commit(
    folder: Path,
    entries: Iterable[TensorEntry],
    metadata: Mapping[str, Any],
    *,
    hooks: Hooks = NO_HOOKS,
) -> Path:
    """Make a checkpoint of the shards in the folder of `begin_checkpoint`; return its final folder.

    One rank calls it, with the entries of all ranks. A name may come from two stages, as the token
    embedding of a tied model does: one copy is kept, the first, with a warning if they differ. A
    committed checkpoint of the same step is replaced. `metadata` is JSON: dicts, lists, strings,
    finite numbers.

    The manifest is read back, as `write_shard` has read the tensors: everything that is committed
    has been verified.

    Raises:
        CheckpointError: a shard is not in the folder, because the hosts do not share it, or the
            manifest does not read back as it was written.
        OSError: the disk is full.
    """
    tensors: dict[str, TensorEntry] = {}
    for entry in entries:
        kept = tensors.setdefault(entry.name, entry)
        if kept.checksum != entry.checksum:
            _log.warning("%s differs: kept that of %s, not %s", entry.name, kept.file, entry.file)
    for file in sorted({entry.file for entry in tensors.values()}):
        check_shard(folder, file, [entry for entry in tensors.values() if entry.file == file])
    # From here on only rank 0 writes: the manifest, and the rename that commits everything.
    manifest = Manifest(
        step=step_of(folder), metadata=dict(metadata), tensors=tuple(tensors.values())
    )
    write_manifest(folder, manifest)
    if read_manifest(folder).tensors != manifest.tensors:
        raise corrupt(folder, "the manifest does not read back as it was written")
    hooks.before_save_phase(SavePhase.RENAME)
    return put_in_place(folder)


def verify(checkpoint: Checkpoint) -> None:
    """Read and verify all tensors of a checkpoint, one at a time, and keep none.

    Raises:
        CheckpointError: a file is missing, truncated or changed.
    """
    for name in checkpoint.tensors:
        checkpoint.read([name])


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a committed checkpoint; only its manifest is read.

    Raises:
        CheckpointError: the manifest is missing, corrupt or of another format version.
    """
    manifest = read_manifest(folder)
    return Checkpoint(
        folder=folder,
        step=manifest.step,
        metadata=manifest.metadata,
        tensors={entry.name: entry for entry in manifest.tensors},
    )
