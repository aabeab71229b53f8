"""Find, save, commit and remove checkpoints in object storage."""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.checkpoint import manifest_of
from jaxpipe.runtime.checkpoint.manifest import (
    MANIFEST,
    TensorEntry,
    corrupt,
    read_manifest,
    sealed,
)
from jaxpipe.runtime.checkpoint.object_storage.object_shard import pieces_of
from jaxpipe.runtime.checkpoint.shard import checksum_header, entries_of
from jaxpipe.runtime.hooks import Hooks, SavePhase
from jaxpipe.runtime.storage.object_folder import ObjectFolder

_MANIFEST = re.compile(rf"(step-(\d{{8,}}))/{re.escape(MANIFEST)}")


def step_prefix(folder: ObjectFolder, step: int) -> ObjectFolder:
    """Return the prefix of the checkpoint of a step.

    >>> from jaxpipe.runtime.storage.object_folder import open_object_folder
    >>> str(step_prefix(open_object_folder("memory://run"), 100))
    'memory://run/step-00000100'
    """
    assert step >= 0, step
    return folder / f"step-{step:08d}"


def committed_prefixes(folder: ObjectFolder) -> dict[int, ObjectFolder]:
    """Return the prefix of each committed step, in order.

    Raises:
        CheckpointError: the store does not answer, or refuses.
    """
    try:
        found = map(_MANIFEST.fullmatch, folder.sizes())
    except OSError as error:
        raise CheckpointError(
            f"`checkpoint.folder` must answer; {folder} does not: {error.strerror}; check the "
            "credentials in the environment and the endpoint"
        ) from error
    return {int(match[2]): folder / match[1] for match in found if match is not None}


class ObjectStore:
    """The checkpoints of a run behind a URL; the newest `keep` stay."""

    def __init__(self, folder: ObjectFolder, *, keep: int, hooks: Hooks) -> None:
        self._folder, self._keep, self._hooks = folder, keep, hooks

    def begin(self, *, step: int) -> None:
        """Remove what interrupted saves of this step have left; rank 0 calls it first."""
        self._remove_strays(step_prefix(self._folder, step))

    def write(
        self, name: str, tensors: Mapping[str, np.ndarray], *, step: int
    ) -> tuple[TensorEntry, ...]:
        """Write one shard, and read its length and its header back.

        The tensors are not read back: that would load every link a second time. The libraries send
        a checksum with each part, and the store refuses a part that does not match it.
        """
        file = f"{name}-{secrets.token_hex(8)}.safetensors"
        folder = step_prefix(self._folder, step)
        arrays = {key: np.asarray(tensor, order="C") for key, tensor in tensors.items()}
        entries = entries_of(arrays, file=file)
        folder.write(file, pieces_of(arrays))
        checksum_header(folder, file)
        return entries

    def commit(
        self, entries: Iterable[TensorEntry], metadata: Mapping[str, Any], *, step: int
    ) -> None:
        """Write the manifest, which commits, and remove older checkpoints; rank 0 calls it."""
        folder, entries = step_prefix(self._folder, step), tuple(entries)
        files = sorted({entry.file for entry in entries})
        # Also that the store shows what other ranks have written.
        headers = {file: checksum_header(folder, file) for file in files}
        manifest = manifest_of(step, entries, metadata, headers=headers)
        self._hooks.before_save_phase(SavePhase.MANIFEST)
        folder.put(MANIFEST, sealed(manifest))
        if read_manifest(folder).tensors != manifest.tensors:
            raise corrupt(folder, "the manifest does not read back as it was written")
        self._hooks.before_save_phase(SavePhase.PRUNE)
        self._remove_strays(folder)
        committed = committed_prefixes(self._folder)
        steps = sorted(each for each in committed if each <= step)
        for each in steps[: -self._keep]:
            self._remove(committed[each])

    def abandon(self, *, step: int, number: int | None) -> None:
        """Remove the shards of a save that has failed on some rank; `number` is its `errno`."""
        del number  # object storage has no room to make
        self._remove_strays(step_prefix(self._folder, step))

    def _remove(self, folder: ObjectFolder) -> None:
        # The manifest first: what is only partly removed is no checkpoint.
        folder.remove([MANIFEST])
        self._hooks.before_save_phase(SavePhase.REMOVE)
        folder.remove(folder.sizes())

    def _remove_strays(self, folder: ObjectFolder) -> None:
        """Remove the objects of a step that its manifest does not name, all if there is none."""
        found = folder.sizes()
        listed: set[str] = set()
        if MANIFEST in found:
            try:
                listed = {entry.file for entry in _entries(folder)} | {MANIFEST}
            except CheckpointError:  # a broken manifest describes nothing
                listed = set()
        folder.remove(file for file in found if file not in listed)


def _entries(folder: ObjectFolder) -> tuple[TensorEntry, ...]:
    manifest = read_manifest(folder)
    return (*manifest.tensors, *manifest.copies)
