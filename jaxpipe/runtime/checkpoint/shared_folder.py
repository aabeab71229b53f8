"""Save, commit and remove checkpoints in a folder that all ranks share."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpipe.runtime.checkpoint.checkpoint import commit
from jaxpipe.runtime.checkpoint.folders import begin_checkpoint, discard, partial_folder, prune
from jaxpipe.runtime.checkpoint.make_room import make_room, most_with_room
from jaxpipe.runtime.checkpoint.manifest import TensorEntry
from jaxpipe.runtime.checkpoint.streamed_shard import write_shard
from jaxpipe.runtime.hooks import Hooks, SavePhase


class SharedFolder:
    """The checkpoints in the folder of a run; the newest `keep` stay.

    On a disk without room for one more than that, the oldest is removed before the next is written.
    """

    def __init__(self, folder: Path, *, keep: int, hooks: Hooks) -> None:
        self._folder, self._keep, self._hooks = folder, keep, hooks
        self._most: int | None = None

    def begin(self, *, step: int) -> None:
        """Make the folder of a save, once there is room; rank 0 calls it first."""
        make_room(self._folder, most=self._most)
        begin_checkpoint(self._folder, step=step)

    def write(
        self, name: str, tensors: Mapping[str, np.ndarray], *, step: int
    ) -> tuple[TensorEntry, ...]:
        """Write one shard, and read it back from the device."""
        return write_shard(partial_folder(self._folder, step=step), name, tensors)

    def commit(
        self, entries: Iterable[TensorEntry], metadata: Mapping[str, Any], *, step: int
    ) -> None:
        """Write the manifest, rename the folder, and remove older ones; rank 0 calls it."""
        folder = partial_folder(self._folder, step=step)
        self._hooks.before_save_phase(SavePhase.MANIFEST)
        commit(folder, entries, metadata, hooks=self._hooks)
        self._hooks.before_save_phase(SavePhase.PRUNE)
        prune(self._folder, keep=self._keep, newest=step, hooks=self._hooks)

    def abandon(self, *, step: int, number: int | None) -> None:
        """Remove a save that has failed on some rank, whose space the next one needs."""
        discard(partial_folder(self._folder, step=step))
        self._most = most_with_room(self._folder, number) or self._most
