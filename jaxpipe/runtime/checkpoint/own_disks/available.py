"""The newest checkpoint of which the disks of a run together hold every file.

::

    disk A    step 20: stage-0            step 40: stage-0, stage-1
    disk B    step 20: stage-1            (its host is new: nothing)         ──► step 40
    disk C    step 20: stage-2            step 40: stage-1, stage-2

A save that was interrupted while disks committed counts as well: a folder without a manifest holds
files that a manifest on another disk describes.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from jaxpipe.comm import FILE_TAG, Transport, broadcast_bytes, exchange_bytes
from jaxpipe.errors import CheckpointError
from jaxpipe.foreign_file import read_regular
from jaxpipe.runtime.checkpoint.checkpoint import Checkpoint, checkpoint_of, verify_file
from jaxpipe.runtime.checkpoint.folders import newest_first, partial_folder, step_of, unfinished
from jaxpipe.runtime.checkpoint.manifest import MANIFEST, parse_manifest
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.storage.checksum import checksum_bytes

logger = logging.getLogger(__name__)

_MOST_BYTES = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """A checkpoint, whole on the disks together: `content` is its manifest, equal on all ranks.

    `held[rank]` are the intact files on the disk that the rank leads; none for other ranks.
    """

    step: int
    content: bytes
    held: tuple[frozenset[str], ...]

    def on_disk(self, folder: Path, *, leader: int) -> Checkpoint:
        """Return the checkpoint with the files that a disk holds, in this `folder`."""
        checkpoint = checkpoint_of(folder, parse_manifest(self.content, folder))
        return elsewhere(checkpoint, self.held[leader])


def elsewhere(checkpoint: Checkpoint, held: Iterable[str]) -> Checkpoint:
    """Return the checkpoint whose other files, except those `held`, are on other disks."""
    return replace(checkpoint, elsewhere=frozenset(checkpoint.names_by_file) - frozenset(held))


def newest_available(
    transport: Transport, disks: Disks, folder: Path, *, timeout_s: float
) -> Available:
    """Return the newest checkpoint that is whole; all ranks call this, and get the same.

    Every byte is read and verified, by the leader of each disk. A warning on rank 0 names each
    newer one that is not whole, and the files that are lost.

    Raises:
        CheckpointError: there is none; all ranks raise it.
        DeadlineError: a rank did not answer in time.
    """
    own = manifests_in(folder) if disks.leads(transport.rank) else {}
    offered = [(step, checksum) for step, checksum in own]
    payloads = exchange_bytes(
        transport, msgspec.json.encode(offered), tag=FILE_TAG, timeout_s=timeout_s
    )
    offers = [msgspec.json.decode(each, type=list[tuple[int, str]]) for each in payloads]
    problems: list[str] = []
    for candidate in in_order(offers):
        source = next(rank for rank, offer in enumerate(offers) if candidate in offer)
        content = broadcast_bytes(
            transport,
            read_regular(own[candidate], most_bytes=_MOST_BYTES)
            if transport.rank == source
            else None,
            root=source,
            tag=FILE_TAG,
            timeout_s=timeout_s,
        )
        found = _held(transport, disks, folder, content, step=candidate[0], timeout_s=timeout_s)
        if not (lost := _lost(found, folder)):
            if problems and transport.rank == 0:
                logger.warning("the run resumes from step %d", found.step)
            return found
        problems.append(
            f"the checkpoint of step {found.step} lacks {', '.join(lost)}, which no "
            f"disk holds intact ({_asked(disks)})"
        )
        if transport.rank == 0:
            logger.warning("%s; trying an older one", problems[-1])
    raise _none(folder, disks, problems)


def in_order(offers: Sequence[Iterable[tuple[int, str]]]) -> list[tuple[int, str]]:
    """Return the checkpoints of all disks, the newest first; of a step, that of the most disks.

    A host that was away may have another checkpoint of a step that the others have repeated.

    >>> in_order([[(20, "a"), (40, "x")], [(20, "a")], [(40, "y"), (20, "a")], [(40, "y")]])
    [(40, 'y'), (40, 'x'), (20, 'a')]
    """
    every = [each for offer in offers for each in offer]
    return sorted(set(every), key=lambda each: (-each[0], -every.count(each), each[1]))


def manifests_in(run_folder: Path) -> dict[tuple[int, str], Path]:
    """Return the readable manifests on this disk, by step and checksum of their content."""
    found: dict[tuple[int, str], Path] = {}
    committed = (folder for folder in newest_first(run_folder) if not folder.suffix)
    for folder in (*committed, *unfinished(run_folder)):
        path = folder / MANIFEST
        try:
            content = read_regular(path, most_bytes=_MOST_BYTES)
            step = parse_manifest(content, folder).step
        except (OSError, CheckpointError):
            continue
        if step == step_of(folder):
            found.setdefault((step, checksum_bytes(content)), path)
    return found


def base_folder(run_folder: Path, content: bytes, *, step: int) -> Path:
    """Return the folder of a checkpoint on this disk: with its manifest, or else unfinished."""
    partial = partial_folder(run_folder, step=step)
    committed = partial.with_suffix("")
    for folder in (committed, partial):
        try:
            if read_regular(folder / MANIFEST, most_bytes=_MOST_BYTES) == content:
                return folder
        except OSError:
            continue
    return partial


def _held(
    transport: Transport,
    disks: Disks,
    folder: Path,
    content: bytes,
    *,
    step: int,
    timeout_s: float,
) -> Available:
    """Verify what each disk holds of a checkpoint, and exchange it."""
    held: list[str] = []
    if disks.leads(transport.rank):
        base = base_folder(folder, content, step=step)
        held = sorted(_intact(base, checkpoint_of(base, parse_manifest(content, base))))
    payloads = exchange_bytes(
        transport, msgspec.json.encode(held), tag=FILE_TAG, timeout_s=timeout_s
    )
    files = (msgspec.json.decode(each, type=frozenset[str]) for each in payloads)
    return Available(step=step, content=content, held=tuple(files))


def _intact(base: Path, checkpoint: Checkpoint) -> Iterable[str]:
    for file in checkpoint.names_by_file:
        if not (base / file).exists():
            continue
        try:
            verify_file(checkpoint, file)
        except CheckpointError as error:
            logger.warning("%s", error)
            continue
        yield file


def _lost(found: Available, folder: Path) -> list[str]:
    every = checkpoint_of(folder, parse_manifest(found.content, folder)).names_by_file
    return sorted(set(every).difference(*found.held))


def _asked(disks: Disks) -> str:
    return "asked: " + ", ".join(disks.hosts[leader] for leader in disks.leaders)


def _none(folder: Path, disks: Disks, problems: Sequence[str]) -> CheckpointError:
    if not problems:
        return CheckpointError(
            f"`resume` must name a run with a checkpoint; {folder} has none on any host "
            f"({_asked(disks)}); start the run without `resume`, or name another folder"
        )
    return CheckpointError(
        f"`resume` must name a run with a whole checkpoint; none of {len(problems)} in {folder} "
        f"is: {problems[0]}; start the run on the hosts that have the other files"
    )
