"""Save where the hosts share no folder: every rank writes and copies, and a message commits.

::

    every rank     write, verify ─ copy to its keeper, verify ─┐ report
    rank 0                                                      └► all of it? ─► manifest
    every disk     ◄── manifest: write it, rename the folder ───────────────────────┘
                   ──► done everywhere? ──► remove older checkpoints

A disk removes an older checkpoint only when all disks have committed the newer one: whichever host
is lost, and whenever, the others together hold a whole one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from jaxpipe.comm import (
    FILE_TAG,
    SAVE_TAG,
    Transport,
    broadcast_bytes,
    first_text,
    gather_bytes,
    receive_bytes,
    send_bytes,
)
from jaxpipe.errors import CheckpointError
from jaxpipe.foreign_file import check_inside
from jaxpipe.runtime.checkpoint.checkpoint import commit_manifest, manifest_of
from jaxpipe.runtime.checkpoint.folders import (
    begin_checkpoint,
    discard,
    partial_folder,
    prune,
)
from jaxpipe.runtime.checkpoint.make_room import make_room, most_with_room
from jaxpipe.runtime.checkpoint.manifest import corrupt, parse_manifest, sealed
from jaxpipe.runtime.checkpoint.own_disks.copies import Copies
from jaxpipe.runtime.checkpoint.own_disks.file_transfer import receive_file, send_file
from jaxpipe.runtime.checkpoint.save_parts import Snapshot, Written
from jaxpipe.runtime.checkpoint.shard import checksum_header, read_shard
from jaxpipe.runtime.checkpoint.stores import latest
from jaxpipe.runtime.checkpoint.streamed_shard import write_shard
from jaxpipe.runtime.hooks import Hooks, SavePhase
from jaxpipe.runtime.storage.atomic_write import sync_file, sync_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The verdict of rank 0: the content of the manifest, or why there is none.

    `numbers` has the `errno` of each rank that has failed.
    """

    manifest: bytes = b""
    failure: str = ""
    numbers: dict[int, int | None] = field(default_factory=dict)


class CommitByMessage:
    """Saves on all disks of a run; all ranks call `save` for the same steps.

    `folder` is that of the run on this rank's host, `keep` the number of checkpoints that stay, and
    `timeout_s` is for each message.
    """

    def __init__(
        self,
        transport: Transport,
        copies: Copies,
        *,
        folder: Path,
        keep: int,
        timeout_s: float,
        hooks: Hooks,
    ) -> None:
        self._transport = transport
        self._copies = copies
        self._folder = folder
        self._keep = keep
        self._timeout_s = timeout_s
        self._hooks = hooks
        self._leads = copies.disks.leads(transport.rank)
        self._most: int | None = None

    def save(self, snapshot: Snapshot) -> str | None:
        """Save; on rank 0, return what failed on the first rank on which anything did.

        Raises:
            RunError: a message could not be moved in time.
        """
        failure = self._saved(snapshot)
        return failure if failure and self._transport.rank == 0 else None

    def _saved(self, snapshot: Snapshot) -> str:
        step = snapshot.step
        # A folder must exist before any rank of its disk writes to it.
        if failure := self._first(self._make_folder(step)):
            return failure
        self._hooks.before_save_phase(SavePhase.SHARDS)
        written = self._write(snapshot)
        copied = self._copy(step, written)
        decision = self._decide(snapshot, written, copied)
        failure = decision.failure or self._first(self._commit(step, decision.manifest))
        if self._leads:
            self._clean_up(step, failure, decision)
        return failure

    def _first(self, failure: str) -> str:
        return first_text(self._transport, failure, tag=SAVE_TAG, timeout_s=self._timeout_s)

    def _make_folder(self, step: int) -> str:
        if not self._leads:
            return ""
        try:
            # Of a part, only the other disks together know whether it is intact.
            make_room(self._folder, most=self._most, newest=latest)
            begin_checkpoint(self._folder, step=step)
        except OSError as error:
            return str(error)
        return ""

    def _write(self, snapshot: Snapshot) -> Written:
        folder = partial_folder(self._folder, step=snapshot.step)
        entries, headers = (), {}
        try:
            for name, tensors in snapshot.shards.items():
                added = write_shard(folder, name, tensors)
                entries += added
                headers |= {entry.file: checksum_header(folder, entry.file) for entry in added}
        except (OSError, CheckpointError) as error:
            return Written.of(error)
        return Written(entries=entries, headers=headers)

    def _copy(self, step: int, written: Written) -> Written:
        """Send what this rank has written to its keeper, and keep that of others; report why not.

        All ranks move the same pairs in the same order, also those that have failed.
        """
        rank, folder = self._transport.rank, partial_folder(self._folder, step=step)
        report = Written()
        for source, keeper in self._copies.pairs:
            if rank == source:
                self._send(folder, written, to=keeper)
            elif rank == keeper:
                kept = self._receive(folder, source=source)
                report = kept if kept.failure else report
        return report

    def _send(self, folder: Path, written: Written, *, to: int) -> None:
        transport, timeout_s = self._transport, self._timeout_s
        announced = msgspec.json.encode(written)
        send_bytes(transport, announced, to=(to,), tag=FILE_TAG, timeout_s=timeout_s)
        for file in written.files:
            send_file(transport, folder / file, to=to, timeout_s=timeout_s)

    def _receive(self, folder: Path, *, source: int) -> Written:
        """Write the files of another rank, and read them back.

        Raises:
            CheckpointError: the other rank names a file outside of the folder.
        """
        transport, timeout_s = self._transport, self._timeout_s
        announced = receive_bytes(transport, source=source, tag=FILE_TAG, timeout_s=timeout_s)
        theirs = msgspec.json.decode(announced, type=Written)
        paths = _paths(folder, theirs.files)
        problems = {
            path.name: receive_file(transport, path, source=source, timeout_s=timeout_s)
            for path in paths
        }
        try:
            for file, problem in problems.items():
                if problem:
                    raise corrupt(folder / file, problem)
                verify_copy(folder, file, theirs)
        except (OSError, CheckpointError) as error:
            return Written.of(error)
        return Written()

    def _decide(self, snapshot: Snapshot, written: Written, copied: Written) -> _Decision:
        """Return the verdict of rank 0, who hears from all ranks, also from those that failed."""
        mine = written if written.failure or not copied.failure else copied
        payloads = gather_bytes(
            self._transport,
            msgspec.json.encode(mine),
            root=0,
            tag=SAVE_TAG,
            timeout_s=self._timeout_s,
        )
        verdict = None
        if payloads is not None:
            reports = [msgspec.json.decode(each, type=Written) for each in payloads]
            verdict = msgspec.msgpack.encode(self._verdict(snapshot, reports))
        decided = broadcast_bytes(
            self._transport, verdict, root=0, tag=SAVE_TAG, timeout_s=self._timeout_s
        )
        return msgspec.msgpack.decode(decided, type=_Decision)

    def _verdict(self, snapshot: Snapshot, reports: list[Written]) -> _Decision:
        failed = {rank: each for rank, each in enumerate(reports) if each.failure}
        if failed:
            first = next(iter(failed))
            host = self._copies.disks.hosts[first]
            return _Decision(
                failure=f"rank {first} on {host}: {failed[first].failure}",
                numbers={rank: each.number for rank, each in failed.items()},
            )
        self._hooks.before_save_phase(SavePhase.MANIFEST)
        entries = [entry for each in reports for entry in each.entries]
        headers = {file: header for each in reports for file, header in each.headers.items()}
        manifest = manifest_of(snapshot.step, entries, snapshot.metadata, headers=headers)
        return _Decision(manifest=sealed(manifest))

    def _commit(self, step: int, content: bytes) -> str:
        """Commit on this disk, once; return why that failed."""
        if not self._leads:
            return ""
        folder = partial_folder(self._folder, step=step)
        try:
            # From its text, on rank 0 as well: all disks have the same bytes.
            commit_manifest(folder, parse_manifest(content, folder), hooks=self._hooks)
        except (OSError, CheckpointError) as error:
            return f"rank {self._transport.rank}: {error}"
        return ""

    def _clean_up(self, step: int, failure: str, decision: _Decision) -> None:
        if not failure:
            self._hooks.before_save_phase(SavePhase.PRUNE)
            prune(self._folder, keep=self._keep, newest=step, hooks=self._hooks)
            return
        # A partial checkpoint would take the space that the next save needs.
        discard(partial_folder(self._folder, step=step))
        leader_of = self._copies.disks.leader_of
        for rank, number in decision.numbers.items():
            if leader_of[rank] == self._transport.rank:
                self._most = most_with_room(self._folder, number) or self._most


def _paths(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the paths of files that another rank names."""
    try:
        return [check_inside(name, folder) for name in names]
    except OSError as error:
        raise corrupt(folder, error) from None


def verify_copy(folder: Path, file: str, written: Written) -> None:
    """Verify a file that has arrived from another rank, as it is read back from the device.

    Raises:
        CheckpointError: it differs from what that rank has written.
        OSError: it cannot be flushed.
    """
    sync_file(folder / file)
    sync_folder(folder)
    if checksum_header(folder, file) != written.headers[file]:
        raise corrupt(folder / file, "its header does not match its checksum")
    read_shard(folder, file, [entry for entry in written.entries if entry.file == file])
