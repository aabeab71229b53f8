"""Saves checkpoints beside training: a thread of each rank writes, verifies and commits.

::

    training   step ─ copy ─ step ─ step ─ step ─ copy ─ ...
    thread             └ write, read back ─ gather ─ commit ─ prune ┘

Training stops for the copy alone, and for a save that is still under way when the next one begins.
What cannot be saved, because a disk is full, is said in a warning, and training goes on.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np

from jaxpipe.comm import SAVE_TAG, Transport, broadcast_bytes, gather_bytes
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import (
    TensorEntry,
    begin,
    commit,
    discard,
    partial_folder,
    prune,
    write_shard,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one rank saves of the state after `step` steps; nothing else holds these arrays.

    `shards` maps the name of a file to its tensors, by their names.
    """

    step: int
    shards: Mapping[str, Mapping[str, np.ndarray]]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What a rank tells rank 0: its entries, or why it could not write them."""

    entries: tuple[TensorEntry, ...] = ()
    failure: str = ""


class Saver:
    """Saves one snapshot after the other, as one of all ranks; each rank begins the same ones.

    The newest `keep` checkpoints stay. Each message between ranks may take `timeout_s`.
    """

    def __init__(self, transport: Transport, *, folder: Path, keep: int, timeout_s: float) -> None:
        self._transport = transport
        self._folder = folder
        self._keep = keep
        self._timeout_s = timeout_s
        self._thread: Thread | None = None
        self._failure: str | None = None
        self._error: BaseException | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """Start to save, once the save before is done.

        Raises:
            RunError: a message of the save before could not be moved in time.
        """
        self.finish()
        name = f"save of rank {self._transport.rank}"
        self._thread = Thread(target=self._run, args=(snapshot,), name=name, daemon=True)
        self._thread.start()

    def finish(self) -> str | None:
        """Wait for the save under way; on rank 0, return why the last one failed, None if not.

        Raises:
            RunError: a message of the save could not be moved in time.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
        return self._failure

    def _run(self, snapshot: Snapshot) -> None:
        try:
            self._failure = self._save(snapshot)
        except BaseException as error:  # raised again in the thread that trains
            self._error = error
        if self._failure is not None:
            words = "no checkpoint of step %d, training goes on without: %s"
            logger.warning(words, snapshot.step, self._failure)

    def _save(self, snapshot: Snapshot) -> str | None:
        """Save together with all ranks; on rank 0, return what failed."""
        transport, timeout_s = self._transport, self._timeout_s
        refusal = self._make_folder(snapshot.step) if transport.rank == 0 else None
        told = None if refusal is None else refusal.encode()
        refused = broadcast_bytes(transport, told, root=0, tag=SAVE_TAG, timeout_s=timeout_s)
        if refused:
            return refusal
        written = self._write(snapshot)
        payloads = gather_bytes(
            transport, msgspec.json.encode(written), root=0, tag=SAVE_TAG, timeout_s=timeout_s
        )
        if payloads is None:
            return None
        return self._commit([msgspec.json.decode(p, type=_Written) for p in payloads], snapshot)

    def _make_folder(self, step: int) -> str:
        try:
            begin(self._folder, step=step)
        except OSError as error:
            return str(error)
        return ""

    def _write(self, snapshot: Snapshot) -> _Written:
        folder = partial_folder(self._folder, step=snapshot.step)
        entries: tuple[TensorEntry, ...] = ()
        try:
            for name, tensors in snapshot.shards.items():
                entries += write_shard(folder, name, tensors)
        except (OSError, CheckpointError) as error:
            return _Written(failure=str(error))
        return _Written(entries=entries)

    def _commit(self, written: list[_Written], snapshot: Snapshot) -> str | None:
        folder = partial_folder(self._folder, step=snapshot.step)
        failures = [each.failure for each in written if each.failure]
        try:
            if not failures:
                entries = [entry for each in written for entry in each.entries]
                commit(folder, entries, snapshot.metadata)
                prune(self._folder, keep=self._keep, newest=snapshot.step)
        except (OSError, CheckpointError) as error:
            failures.append(str(error))
        if failures:
            discard(folder)
            return failures[0]
        return None
