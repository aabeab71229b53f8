"""The places where a run keeps its checkpoints, behind one interface: a folder, object storage.

Disks of the hosts' own, where a commit is a message between ranks, are `own_disks`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.runtime.checkpoint.manifest import TensorEntry
from jaxpipe.runtime.checkpoint.object_storage.object_store import ObjectStore, committed_prefixes
from jaxpipe.runtime.checkpoint.shared_folder import SharedFolder
from jaxpipe.runtime.hooks import Hooks
from jaxpipe.runtime.storage.object_folder import Folder, open_object_folder


class CheckpointStore(Protocol):
    """Where a run saves. Every method raises `OSError` or `CheckpointError`."""

    def begin(self, *, step: int) -> None:
        """Prepare a save; rank 0 calls it, before any rank writes."""
        ...

    def write(
        self, name: str, tensors: Mapping[str, np.ndarray], *, step: int
    ) -> tuple[TensorEntry, ...]:
        """Write and verify one shard; each rank calls it for its own."""
        ...

    def commit(
        self, entries: Iterable[TensorEntry], metadata: Mapping[str, Any], *, step: int
    ) -> None:
        """Make a checkpoint of the shards of all ranks, and remove old ones; rank 0 calls it."""
        ...

    def abandon(self, *, step: int, number: int | None) -> None:
        """Remove a save that has failed, with this `errno`; rank 0 calls it."""
        ...


def store_in(folder: Folder, *, keep: int, hooks: Hooks) -> CheckpointStore:
    """Return the store of a run's checkpoints."""
    if isinstance(folder, Path):
        return SharedFolder(folder, keep=keep, hooks=hooks)
    return ObjectStore(folder, keep=keep, hooks=hooks)


def checkpoint_place(run_folder: Path, url: str | None) -> Folder:
    """Return where a run keeps its checkpoints: `checkpoint.folder`, by default its own folder.

    Raises:
        ConfigError: fsspec is not installed, or knows no such URL.
    """
    return run_folder if url is None else open_object_folder(url)


def committed(place: Folder) -> Mapping[int, Folder]:
    """Return the folder of each committed step.

    Raises:
        CheckpointError: object storage does not answer.
    """
    return committed_folders(place) if isinstance(place, Path) else committed_prefixes(place)


@overload
def latest(place: Path) -> Path: ...
@overload
def latest(place: Folder) -> Folder: ...
def latest(place: Folder) -> Folder:
    """Return the committed checkpoint of the highest step.

    Raises:
        CheckpointError: there is none, or object storage does not answer.
    """
    found = committed(place)
    if not found:
        raise CheckpointError(
            f"{place} must be the folder of a run, which holds checkpoints, and has none; name "
            "another, or train first, without `--resume`"
        )
    return found[max(found)]
