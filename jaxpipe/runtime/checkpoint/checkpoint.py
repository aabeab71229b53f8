"""A checkpoint, committed as a whole and read tensor by tensor."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.checkpoint_files import files_of
from jaxpipe.runtime.checkpoint.folders import put_in_place, step_of
from jaxpipe.runtime.checkpoint.manifest import (
    Manifest,
    TensorEntry,
    corrupt,
    read_manifest,
    write_manifest,
)
from jaxpipe.runtime.checkpoint.shard import check_shard, checksum_header, listed_in, read_shard
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase
from jaxpipe.runtime.storage.object_folder import Folder

Read: TypeAlias = Callable[[Iterable[str]], Mapping[str, np.ndarray]]
"""Returns tensors by their names, as `Checkpoint.read` does."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An open checkpoint: `tensors` lists its contents by name; none of them is read yet.

    `copies` and `headers` are those of the manifest. `elsewhere` are its files that only other
    disks hold, of a run whose hosts share no folder (`own_disks`).
    """

    folder: Folder
    step: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    copies: tuple[TensorEntry, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()

    @property
    def names_by_file(self) -> dict[str, set[str]]:
        """The names of the tensors in each file."""
        found: dict[str, set[str]] = defaultdict(set)
        for entry in (*self.tensors.values(), *self.copies):
            found[entry.file].add(entry.name)
        return dict(found)

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
    entries = tuple(entries)
    names: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        names[entry.file].add(entry.name)
    for file in sorted(names):
        check_shard(folder, file, names[file])
    headers = {file: checksum_header(folder, file) for file in sorted(names)}
    # From here on only rank 0 writes: the manifest, and the rename that commits everything.
    manifest = manifest_of(step_of(folder), entries, metadata, headers=headers)
    return commit_manifest(folder, manifest, hooks=hooks)


def manifest_of(
    step: int,
    entries: Iterable[TensorEntry],
    metadata: Mapping[str, Any],
    *,
    headers: Mapping[str, str],
) -> Manifest:
    """Return the manifest of these entries: of each name the first, and the others as copies."""
    tensors: dict[str, TensorEntry] = {}
    copies: list[TensorEntry] = []
    for entry in entries:
        kept = tensors.setdefault(entry.name, entry)
        if kept is not entry:
            copies.append(entry)
        if kept.checksum != entry.checksum:
            _log.warning("%s differs: kept that of %s, not %s", entry.name, kept.file, entry.file)
    return Manifest(
        step=step,
        metadata=dict(metadata),
        tensors=tuple(tensors.values()),
        copies=tuple(copies),
        headers=dict(headers),
    )


def commit_manifest(folder: Path, manifest: Manifest, *, hooks: Hooks = NO_HOOKS) -> Path:
    """Write the manifest of a folder whose shards are verified, and put the folder in place.

    Raises:
        CheckpointError: the manifest does not read back as it was written.
        OSError: the disk is full.
    """
    write_manifest(folder, manifest)
    if read_manifest(folder).tensors != manifest.tensors:
        raise corrupt(folder, "the manifest does not read back as it was written")
    hooks.before_save_phase(SavePhase.RENAME)
    return put_in_place(folder)


def verify(checkpoint: Checkpoint) -> None:
    """Read and verify every byte of a checkpoint, one tensor at a time, and keep none.

    Raises:
        CheckpointError: a file is missing, truncated, changed, or not listed, or holds a tensor
            that is not.
    """
    folder = checkpoint.folder
    check_headers(checkpoint)
    for file in files_of(folder).strays():
        if file not in checkpoint.names_by_file:
            raise corrupt(folder / file, "the manifest does not list it")
    # One at a time: a whole checkpoint may not fit into memory.
    for entry in (*checkpoint.tensors.values(), *checkpoint.copies):
        read_shard(folder, entry.file, [entry])


def check_headers(checkpoint: Checkpoint) -> None:
    """Check the length and the header of every file, and read no tensor.

    Raises:
        CheckpointError: a file is missing, truncated, or holds other tensors.
    """
    for file, names in checkpoint.names_by_file.items():
        _check_listed(checkpoint, file, names)


def verify_file(checkpoint: Checkpoint, file: str) -> None:
    """Read and verify every byte of one file, one tensor at a time, and keep none.

    Raises:
        CheckpointError: it is missing, truncated, changed, or holds other tensors.
    """
    _check_listed(checkpoint, file, checkpoint.names_by_file[file])
    for entry in (*checkpoint.tensors.values(), *checkpoint.copies):
        if entry.file == file:
            read_shard(checkpoint.folder, file, [entry])


def _check_listed(checkpoint: Checkpoint, file: str, names: set[str]) -> None:
    """Check the header of a file, or of older versions, that its tensors are in the manifest."""
    folder = checkpoint.folder
    if not checkpoint.headers:
        # They list a tensor that two files hold once: what else a file holds must be listed anyhow.
        check_shard(folder, file, names | (listed_in(folder, file) & set(checkpoint.tensors)))
    elif checksum_header(folder, file) != checkpoint.headers.get(file):
        raise corrupt(folder / file, "its header does not match its checksum")
    else:
        check_shard(folder, file, names)


def open_checkpoint(folder: Folder) -> Checkpoint:
    """Open a committed checkpoint; only its manifest is read.

    Raises:
        CheckpointError: the manifest is missing, corrupt or of another format version.
    """
    return checkpoint_of(folder, read_manifest(folder))


def checkpoint_of(folder: Folder, manifest: Manifest) -> Checkpoint:
    """Return the checkpoint that a manifest describes, with its files in this folder."""
    return Checkpoint(
        folder=folder,
        step=manifest.step,
        metadata=manifest.metadata,
        tensors={entry.name: entry for entry in manifest.tensors},
        copies=manifest.copies,
        headers=manifest.headers,
    )
