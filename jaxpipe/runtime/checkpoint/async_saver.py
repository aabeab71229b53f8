"""Asynchronous checkpointing: a thread of each rank writes, verifies and commits.

::

    training   step ─ copy ─ step ─ step ─ step ─ copy ─ ...
    thread             └ write, read back ─ gather ─ commit ─ prune ┘

Training stops for the copy, and for a save that is still under way when the next one begins. If
a checkpoint cannot be saved, a warning says so and training continues, up to a number of failures
in a row.

Checkpoints go to a folder that all ranks share, or to object storage (`stores`). Where the hosts
share no folder, `own_disks.commit_by_message` saves in the same thread instead.
"""

import logging
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import msgspec

from jaxpipe.comm import SAVE_TAG, Transport, broadcast_bytes, gather_bytes
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.errors import CheckpointError, RunError
from jaxpipe.runtime.checkpoint import TensorEntry
from jaxpipe.runtime.checkpoint.own_disks.commit_by_message import CommitByMessage
from jaxpipe.runtime.checkpoint.save_parts import Snapshot, Written
from jaxpipe.runtime.checkpoint.stores import store_in
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase
from jaxpipe.runtime.storage.object_folder import Folder

logger = logging.getLogger(__name__)


class Saver:
    """Saves one snapshot after another; all ranks must call `begin` for the same steps.

    The newest `keep` checkpoints stay. After `give_up_after` failed saves in a row no other begins;
    0 is any number of them. `timeout_s` is for each message between ranks. `apart` saves
    where the hosts share no folder.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        folder: Folder,
        keep: int,
        timeout_s: float,
        give_up_after: int = 0,
        hooks: Hooks = NO_HOOKS,
        apart: CommitByMessage | None = None,
    ) -> None:
        self._give_up_after, self._num_failed = give_up_after, 0
        self._apart = apart
        self._transport = transport
        self._store = store_in(folder, keep=keep, hooks=hooks)
        self._timeout_s = timeout_s
        self._hooks = hooks
        self._thread: SerialExecutor | None = None
        self._under_way: Future[str | None] | None = None
        self._failure: str | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """Start to save, once the previous save has ended.

        Raises:
            RunError: a message of the previous save could not be moved in time, or, on rank 0, too
                many saves in a row have failed.
        """
        # One save at a time: two would use the same tags, and twice the memory.
        failure = self.finish()
        self._num_failed = 0 if failure is None else self._num_failed + 1
        if self._num_failed == self._give_up_after > 0:
            raise RunError(
                f"`checkpoint.give_up_after` ({self._give_up_after}) saves in a row have failed, "
                f"the last one with: {failure}; free some space, and resume from the newest "
                "checkpoint with --resume"
            )
        # One thread for all saves: the GNU C library gives each new thread another pool of memory,
        # up to eight for a core, and every pool keeps the most that a save has needed.
        if self._thread is None:
            self._thread = SerialExecutor(name=f"save of rank {self._transport.rank}")
        self._under_way = self._thread.begin(partial(self._run, snapshot))

    def finish(self) -> str | None:
        """Wait for the save under way; on rank 0, return why it failed, None if it did not.

        Raises:
            RunError: a message of the save could not be moved in time.
        """
        if self._under_way is not None:
            self._failure = self._under_way.result()
        return self._failure

    def close(self) -> str | None:
        """Wait as `finish` does, and end the thread.

        Raises:
            RunError: as by `finish`.
        """
        try:
            return self.finish()
        finally:
            if self._thread is not None:
                self._thread.close(timeout_s=self._timeout_s)

    def _run(self, snapshot: Snapshot) -> str | None:
        save = self._save if self._apart is None else self._apart.save
        failure = save(snapshot)
        if failure is not None:
            step = snapshot.step
            logger.warning("no checkpoint of step %d, training continues: %s", step, failure)
        return failure

    def _save(self, snapshot: Snapshot) -> str | None:
        """Save, together with all other ranks; on rank 0, return what failed."""
        transport, timeout_s = self._transport, self._timeout_s
        # A folder must exist before any rank writes to it; without one, all return here.
        failure = self._begin(snapshot.step) if transport.rank == 0 else None
        message = None if failure is None else failure.encode()
        if broadcast_bytes(transport, message, root=0, tag=SAVE_TAG, timeout_s=timeout_s):
            return failure
        self._hooks.before_save_phase(SavePhase.SHARDS)
        written = self._write(snapshot)
        # All ranks gather, also those that have failed: rank 0 must learn of every failure.
        payloads = gather_bytes(
            transport, msgspec.json.encode(written), root=0, tag=SAVE_TAG, timeout_s=timeout_s
        )
        if payloads is None:
            return None
        return self._commit([msgspec.json.decode(p, type=Written) for p in payloads], snapshot)

    def _begin(self, step: int) -> str:
        """Return an empty string, or why nothing can be saved."""
        try:
            self._store.begin(step=step)
        except (OSError, CheckpointError) as error:
            return str(error)
        return ""

    def _write(self, snapshot: Snapshot) -> Written:
        entries: tuple[TensorEntry, ...] = ()
        try:
            for name, tensors in snapshot.shards.items():
                entries += self._store.write(name, tensors, step=snapshot.step)
        except (OSError, CheckpointError) as error:
            return Written.of(error)
        return Written(entries=entries)

    def _commit(self, written: list[Written], snapshot: Snapshot) -> str | None:
        failures = [each for each in written if each.failure]
        try:
            if not failures:
                entries = [entry for each in written for entry in each.entries]
                self._store.commit(entries, snapshot.metadata, step=snapshot.step)
        except (OSError, CheckpointError) as error:
            failures.append(Written.of(error))
        if not failures:
            return None
        with suppress(OSError):  # what stays is removed by the next save
            self._store.abandon(step=snapshot.step, number=failures[0].number)
        return failures[0].failure
