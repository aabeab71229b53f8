"""The folder of a merge server, and its anchors as checkpoints.

::

    merge.json            address and key: what islands name as `quorum.server`
    merges.jsonl          the log of `jaxpipe.outer.merge_log`: what decides the bits of the anchors
    checkpoints/step-12   the anchor number 12, and the outer momentum of each tensor

A checkpoint is written from copies while islands train: none waits for it.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.outer.outer_update import OuterState
from jaxpipe.outer.quorum import Merger, QuorumConfig
from jaxpipe.runtime.checkpoint import (
    begin_checkpoint,
    commit,
    latest,
    open_checkpoint,
    prune,
    write_shard,
)

_MOMENTUM: Final = "momentum."

logger = logging.getLogger(__name__)


class MergedCheckpoints:
    """Writes the anchors of a merge server, of which it keeps `keep`."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any], *, keep: int) -> None:
        self._folder = folder
        self._metadata = metadata
        self._keep = keep
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[None] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def merged(self, merger: Merger) -> None:
        """Save an anchor that was just made, if the one before has been written."""
        if self._writing is None or self._writing.done():
            self._report()
            self._writing = self._writer.submit(self._save, merger.version, _tensors(merger))

    def close(self, merger: Merger | None) -> None:
        """Save the last anchor.

        Raises:
            CheckpointError: it does not read back as it was written.
            OSError: it cannot be written.
        """
        self._writer.shutdown()
        self._report()
        if merger is not None and merger.version > 0:
            self._save(merger.version, _tensors(merger))

    def _save(self, number: int, tensors: dict[str, np.ndarray]) -> None:
        partial = begin_checkpoint(self._folder, step=number)
        entries = write_shard(partial, "anchor", tensors)
        commit(partial, entries, self._metadata)
        prune(self._folder, keep=self._keep, newest=number)

    def _report(self) -> None:
        """Warn of a checkpoint that could not be written: the next one may."""
        if self._writing is not None and (error := self._writing.exception()) is not None:
            logger.warning("an anchor was not saved: %s", error)
        self._writing = None


def saved_merger(folder: Path, config: QuorumConfig) -> Merger | None:
    """Return the merger of the newest anchor in a folder; None if there is none.

    Raises:
        CheckpointError: it is corrupt.
        ConfigError: it is no anchor of a merge server.
    """
    try:
        newest = latest(folder)
    except CheckpointError:
        return None
    checkpoint = open_checkpoint(newest)
    tensors = checkpoint.read(checkpoint.tensors)
    anchors = {name: tensor for name, tensor in tensors.items() if not name.startswith(_MOMENTUM)}
    if any(_MOMENTUM + name not in tensors for name in anchors):
        raise ConfigError(
            f"`--out` {folder} has the checkpoints of something else than a merge server; name "
            "another folder"
        )
    states = {
        name: OuterState(anchor=anchor, momentum=tensors[_MOMENTUM + name])
        for name, anchor in anchors.items()
    }
    return Merger(config=config, states=states, version=checkpoint.step)


def _tensors(merger: Merger) -> dict[str, np.ndarray]:
    """Return anchor and momentum by name; no outer step writes into the arrays of an older one."""
    anchors = {name: state.anchor for name, state in merger.states.items()}
    return anchors | {_MOMENTUM + name: state.momentum for name, state in merger.states.items()}
