"""Bring the files of a checkpoint to the disks whose ranks need them, and verify them there.

::

    disk A holds stage-0, needs stage-0             │  B ── stage-1 ──► C
    disk B holds stage-0, stage-1, needs stage-1    │  the manifest is on all three disks afterwards
    disk C is new, needs stage-1                    │
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jaxpipe.comm import FILE_TAG, Transport, exchange_bytes, first_text
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.checkpoint import (
    Checkpoint,
    checkpoint_of,
    commit_manifest,
    open_checkpoint,
    verify_file,
)
from jaxpipe.runtime.checkpoint.manifest import corrupt, parse_manifest
from jaxpipe.runtime.checkpoint.own_disks.available import (
    Available,
    base_folder,
    elsewhere,
    newest_available,
)
from jaxpipe.runtime.checkpoint.own_disks.copies import in_rounds
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.checkpoint.own_disks.file_transfer import receive_file, send_file
from jaxpipe.runtime.storage.atomic_write import sync_file, sync_folder

_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class FileMove:
    """The transfer of a file from the disk that a rank leads to that of another leader."""

    source: int
    to: int
    file: str


def file_moves(
    held: Sequence[Iterable[str]], needed: Sequence[Iterable[str]]
) -> tuple[FileMove, ...]:
    """Return all transfers, the same on all ranks; of several sources, the one with fewest so far.

    Both arguments are by leader. They come in an order in which as many as possible run at once.

    >>> moves = file_moves([{"a"}, {"a", "b"}, set()], [{"b"}, set(), {"a", "b"}])
    >>> [(move.source, move.to, move.file) for move in moves]
    [(1, 0, 'b'), (0, 2, 'a'), (1, 2, 'b')]
    """
    num_sent: Counter[int] = Counter()
    found: list[FileMove] = []
    for to, files in enumerate(needed):
        for file in sorted(set(files) - set(held[to])):
            sources = [rank for rank, there in enumerate(held) if file in set(there)]
            if not sources:
                continue  # `newest_available` has refused such a checkpoint
            source = min(sources, key=lambda rank: (num_sent[rank], rank))
            num_sent[source] += 1
            found.append(FileMove(source=source, to=to, file=file))
    by_pair: dict[tuple[int, int], list[FileMove]] = {}
    for move in found:
        by_pair.setdefault((move.source, move.to), []).append(move)
    return tuple(move for pair in in_rounds(by_pair) for move in by_pair[pair])


def fetch(
    transport: Transport,
    disks: Disks,
    folder: Path,
    available: Available,
    *,
    needs: Iterable[str],
    timeout_s: float,
) -> Checkpoint:
    """Return the checkpoint on this rank's disk, with all files that this rank `needs` in it.

    All ranks call this, with the same `available`. Needed by a disk is what any of its ranks needs.
    The manifest is written on every disk.

    Raises:
        CheckpointError: a file could not be read, written or verified; all ranks raise it.
        DeadlineError: a message took longer than `timeout_s`.
    """
    base = base_folder(folder, available.content, step=available.step)
    # What the manifest does not name is nobody's to write: its names were checked.
    named = checkpoint_of(base, parse_manifest(available.content, base)).names_by_file
    needed = [
        each.intersection(named) for each in _needed(transport, disks, needs, timeout_s=timeout_s)
    ]
    problem = ""
    if disks.leads(transport.rank):
        problem = _begin(base)
        moves = file_moves(available.held, needed)
        arrived = move_files(transport, base, moves, timeout_s=timeout_s)
        missing = needed[transport.rank] - available.held[transport.rank]
        problem = problem or arrived or _settle(base, available, missing)
    if problem := first_text(transport, problem, tag=FILE_TAG, timeout_s=timeout_s):
        raise CheckpointError(problem)
    leader = disks.leader_of[transport.rank]
    committed = base.with_suffix("") if base.suffix == _PARTIAL else base
    return elsewhere(open_checkpoint(committed), available.held[leader] | needed[leader])


def gather_on_rank_0(transport: Transport, disks: Disks, folder: Path, *, timeout_s: float) -> None:
    """Bring all files of the last checkpoint to the disk of rank 0, which ends with a whole model.

    All ranks call this once everything is saved.

    Raises:
        CheckpointError: a file could not be read, written or verified.
        DeadlineError: a message took longer than `timeout_s`.
    """
    last = newest_available(transport, disks, folder, timeout_s=timeout_s)
    needs = last.on_disk(folder, leader=0).names_by_file if transport.rank == 0 else ()
    fetch(transport, disks, folder, last, needs=needs, timeout_s=timeout_s)


def _needed(
    transport: Transport, disks: Disks, needs: Iterable[str], *, timeout_s: float
) -> list[frozenset[str]]:
    """Return the files that the ranks of each disk need, by its leader."""
    payloads = exchange_bytes(
        transport, msgspec.json.encode(sorted(needs)), tag=FILE_TAG, timeout_s=timeout_s
    )
    by_leader: list[set[str]] = [set() for _ in payloads]
    for rank, payload in enumerate(payloads):
        by_leader[disks.leader_of[rank]] |= msgspec.json.decode(payload, type=set[str])
    return [frozenset(files) for files in by_leader]


def _begin(base: Path) -> str:
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return str(error)
    return ""


def move_files(
    transport: Transport, base: Path, moves: Iterable[FileMove], *, timeout_s: float
) -> str:
    """Send and receive files of a folder, in one order on all ranks; return the first problem.

    What has arrived is not verified.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved.
    """
    problem = ""
    for move in moves:
        if move.source == transport.rank:
            send_file(transport, base / move.file, to=move.to, timeout_s=timeout_s)
        elif move.to == transport.rank:
            path = base / move.file
            failed = receive_file(transport, path, source=move.source, timeout_s=timeout_s)
            problem = problem or (f"{path}: {failed}" if failed else "")
    return problem


def _settle(base: Path, available: Available, arrived: Iterable[str]) -> str:
    """Verify the files that have arrived, and commit the folder if it is not; return a problem."""
    checkpoint = checkpoint_of(base, parse_manifest(available.content, base))
    try:
        for file in sorted(arrived):
            sync_file(base / file)
            verify_file(checkpoint, file)
        sync_folder(base)
        if base.suffix == _PARTIAL:
            commit_manifest(base, parse_manifest(available.content, base))
    except (OSError, CheckpointError) as error:
        return str(corrupt(base, error) if isinstance(error, OSError) else error)
    return ""
