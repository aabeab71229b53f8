"""Bring the datasets to hosts that have none, where the hosts of a run share no folder.

::

    disk A    data.folder: dataset.json, train.npy, eval.npy, ...
    disk B    nothing                    ◄── files, verified ── disk A or C     run/dataset
                                             (of a mixture: run/dataset-0, run/dataset-1, ...)
    disk C    data.folder: the same dataset.json

A copy stays in the run folder, and the next start finds it there. Not exported by the package,
which needs no jax.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from jaxpipe.comm import FILE_TAG, Transport, exchange_bytes, first_text
from jaxpipe.errors import DataError
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.checkpoint.own_disks.fetch import file_moves, move_files
from jaxpipe.runtime.data.dataset.chat_template import TEMPLATES
from jaxpipe.runtime.data.dataset.dataset import open_dataset
from jaxpipe.runtime.data.dataset.record import RECORD
from jaxpipe.runtime.data.dataset.tokenizer_files import NAMES, is_tokenizer_file
from jaxpipe.runtime.storage.block_checksums import blocks_file
from jaxpipe.runtime.storage.checksum import checksum_file
from jaxpipe.runtime.storage.object_folder import Folder, ObjectFolder

_KINDS = ("", "-labels", "-documents", "-counted")
_ARRAYS = tuple(f"{split}{kind}.npy" for split in ("train", "eval") for kind in _KINDS)
_FILES = (RECORD, *NAMES, *_ARRAYS, *map(blocks_file, _ARRAYS))
_COPY = "dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The dataset on a disk: the checksums of its files, in a copy or not; or what is wrong."""

    files: Mapping[str, str] = field(default_factory=dict)
    is_copy: bool = False
    problem: str = ""


def bring_datasets(
    transport: Transport,
    disks: Disks,
    folders: Sequence[Folder],
    *,
    run_folder: Path,
    timeout_s: float,
) -> tuple[Folder, ...]:
    """Return where this rank's disk has the datasets of rank 0, as `bring_dataset` finds each.

    What is in object storage stays there: each rank reads its part.
    """
    one = len(folders) == 1
    return tuple(
        folder
        if isinstance(folder, ObjectFolder)
        else bring_dataset(
            transport,
            disks,
            folder,
            copy=run_folder / (_COPY if one else f"{_COPY}-{number}"),
            timeout_s=timeout_s,
        )
        for number, folder in enumerate(folders)
    )


def bring_dataset(
    transport: Transport, disks: Disks, folder: Path, *, copy: Path, timeout_s: float
) -> Path:
    """Return where this rank's disk has the dataset of rank 0: in `folder`, or in `copy`.

    All ranks call this. The leader of each disk reads and verifies every byte.

    Raises:
        DataError: a disk has another dataset or a broken one, or a copy is not intact; all ranks
            raise it.
        DeadlineError: a message took longer than `timeout_s`.
    """
    leads = disks.leads(transport.rank)
    mine = _find(folder, copy) if leads else _Found()
    payloads = exchange_bytes(
        transport, msgspec.json.encode(mine), tag=FILE_TAG, timeout_s=timeout_s
    )
    found = [msgspec.json.decode(each, type=_Found) for each in payloads]
    if problem := _problem(found, disks, folder):
        raise DataError(problem)  # the same on all ranks, who have heard the same
    held = [each.files for each in found]
    lacks = [disks.leads(rank) and not files for rank, files in enumerate(held)]
    failure = ""
    if leads:
        moves = file_moves(held, [held[0] if each else () for each in lacks])
        here = copy if mine.is_copy or lacks[transport.rank] else folder
        here.mkdir(parents=True, exist_ok=True)
        failure = move_files(transport, here, moves, timeout_s=timeout_s) or _broken(here)
    if failure := first_text(transport, failure, tag=FILE_TAG, timeout_s=timeout_s):
        raise DataError(failure)
    leader = disks.leader_of[transport.rank]
    return copy if found[leader].is_copy or lacks[leader] else folder


def _find(folder: Path, copy: Path) -> _Found:
    if (folder / RECORD).exists():
        return _Found(files=_checksums(folder), problem=_broken(folder))
    if _broken(copy):  # missing, or left by a transfer that was interrupted: it is made again
        return _Found()
    return _Found(files=_checksums(copy), is_copy=True)


def _checksums(folder: Path) -> dict[str, str]:
    names = (
        *_FILES,
        *(f"{TEMPLATES}/{path.name}" for path in (folder / TEMPLATES).glob("*.jinja")),
    )
    return {name: checksum_file(folder / name) for name in names if (folder / name).exists()}


def _broken(folder: Path) -> str:
    """Return why there is no intact dataset in a folder; an empty string if there is one."""
    try:
        open_dataset(folder, verify=True)
    except DataError as error:
        return str(error)
    return ""


def _problem(found: Sequence[_Found], disks: Disks, folder: Path) -> str:
    """Return why the ranks cannot train on what they have found, if they cannot."""
    for rank in disks.leaders:
        host, each = disks.hosts[rank], found[rank]
        if each.problem:
            return f"{each.problem} (on {host})"
        if others := {
            name for name in each.files if name not in _FILES and not is_tokenizer_file(name)
        }:
            return f"a dataset has the files {', '.join(_FILES)}; {host} names {min(others)!r:.80}"
        if each.files and each.files != found[0].files:
            return (
                f"all hosts must have the same dataset: the dataset {folder} on {host} differs "
                f"from that on {disks.hosts[0]}; remove it there, and it is sent"
            )
    if not found[0].files:
        return (
            f"the host of rank 0 must have the dataset: the dataset {folder} on "
            f"{disks.hosts[0]} holds none; prepare it there with `jaxpipe data prepare`"
        )
    return ""
