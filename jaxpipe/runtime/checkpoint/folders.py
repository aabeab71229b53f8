"""Where checkpoints lie in the folder of a run, and how they come and go.

::

    run/checkpoints/step-00000100/            committed: it holds a manifest
                    step-00000150/
                    step-00000150.replaced/   what the same step held before; removed at once
                    step-00000200.partial/    being saved, or left by a save that was interrupted

A save fills a `.partial` folder and renames it, so a crash at any moment leaves every committed
checkpoint usable. A run that resumes from an old step comes by later steps again: the new
checkpoint of a step replaces the old one, which steps aside until the new one is in place and is
found in its stead if the crash comes in between.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.manifest import MANIFEST
from jaxpipe.runtime.storage.atomic_write import sync_folder

_PARTIAL = ".partial"
_REPLACED = ".replaced"
_NAME = re.compile(rf"step-(\d{{8,}})({re.escape(_PARTIAL)}|{re.escape(_REPLACED)})?")


def begin(run_folder: Path, *, step: int) -> Path:
    """Remove what interrupted saves left, and return an empty folder for `write_shard`.

    One rank calls it, before any rank writes; `partial_folder` tells the others the same path.
    """
    folder = partial_folder(run_folder, step=step)
    folder.parent.mkdir(parents=True, exist_ok=True)
    committed = set(_committed(run_folder).values())
    _remove(path for path, _ in _ours(run_folder) if path not in committed)
    folder.mkdir()
    sync_folder(folder.parent)
    return folder


def partial_folder(run_folder: Path, *, step: int) -> Path:
    """Return where the ranks write the shards of a step before they are committed.

    >>> partial_folder(Path("run"), step=100).as_posix()
    'run/checkpoints/step-00000100.partial'
    """
    assert step >= 0, step
    return run_folder / "checkpoints" / f"step-{step:08d}{_PARTIAL}"


def put_in_place(folder: Path) -> Path:
    """Rename a finished `.partial` folder to its step's name, in place of an older one."""
    final = folder.with_name(folder.name.removesuffix(_PARTIAL))
    replaced = final.with_name(final.name + _REPLACED)
    if final.exists():
        _remove([replaced])
        final.rename(replaced)
    folder.rename(final)
    sync_folder(final.parent)
    _remove([replaced])
    return final


def step_of(folder: Path) -> int:
    """Return the step of a folder of any of the three kinds.

    >>> step_of(Path("run/checkpoints/step-00000100.partial"))
    100
    """
    return int(folder.name.removeprefix("step-").partition(".")[0])


def latest(run_folder: Path) -> Path:
    """Return the committed checkpoint of the highest step.

    Raises:
        CheckpointError: there is none.
    """
    committed = _committed(run_folder)
    if not committed:
        raise CheckpointError(
            f"`resume` must name a run with a checkpoint; {run_folder} has none; start the run"
            " without `resume`, or name another folder"
        )
    return committed[max(committed)]


def newest_first(run_folder: Path) -> tuple[Path, ...]:
    """Return all folders that should hold a checkpoint, whether or not they hold a whole one.

    Of one step, the one that stepped aside comes last.
    """
    ours = [(step, path) for path, step in _ours(run_folder) if path.suffix != _PARTIAL]
    return tuple(path for _, path in sorted(ours, key=lambda found: found[0]))[::-1]


def discard(folder: Path) -> None:
    """Remove a folder that `begin` made, and give back its place on the disk."""
    _remove([folder])


def prune(run_folder: Path, *, keep: int, newest: int) -> None:
    """Remove the committed checkpoints before step `newest`, verified just now, but `keep` - 1.

    Later steps stay, and are not counted: a run that could not resume from a broken one goes on
    from an older, and comes by them again.

    Raises:
        CheckpointError: `keep` is below 1.
    """
    if keep < 1:
        raise CheckpointError(f"`keep` must be at least 1, not {keep}; raise it")
    committed = _committed(run_folder)
    steps = sorted(step for step in committed if step <= newest)
    _remove(committed[step] for step in steps[:-keep])


def _committed(run_folder: Path) -> dict[int, Path]:
    """Return the folder of each committed step; of two, the one that did not step aside."""
    return {
        step: path
        for path, step in _ours(run_folder)
        if path.suffix != _PARTIAL and (path / MANIFEST).exists()
    }


def _ours(run_folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders of all three kinds with their steps; a user's own folders are left alone.

    Of one step, the one that stepped aside comes first.
    """
    for path in sorted((run_folder / "checkpoints").glob("step-*"), reverse=True):
        if match := _NAME.fullmatch(path.name):
            yield path, int(match[1])


def _remove(folders: Iterable[Path]) -> None:
    """Remove folders, the manifest first: what cannot be removed as a whole is no checkpoint."""
    for folder in folders:
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
