"""The folders of the checkpoints of a run: how they are created, committed and removed.

::

    run/checkpoints/step-00000100/            committed: it contains a manifest
                    step-00000150/
                    step-00000150.replaced/   the earlier checkpoint of this step; removed at once
                    step-00000200.partial/    being saved, or left by an interrupted save

A save fills a `.partial` folder and renames it: a crash at any time leaves every committed
checkpoint usable. A run that resumes from an old step repeats later ones: the new checkpoint of a
step replaces the old one, which is renamed until the new one is in place, and used instead of it
after a crash in between.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.manifest import MANIFEST
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase
from jaxpipe.runtime.storage.atomic_write import sync_folder
from jaxpipe.runtime.storage.object_folder import Folder

_PARTIAL = ".partial"
_REPLACED = ".replaced"
_NAME = re.compile(rf"step-(\d{{8,}})({re.escape(_PARTIAL)}|{re.escape(_REPLACED)})?")


def begin_checkpoint(run_folder: Path, *, step: int) -> Path:
    """Remove the remains of interrupted saves, and return an empty folder for `write_shard`.

    One rank calls it, before any rank writes; the others get the same path by `partial_folder`.
    """
    folder = partial_folder(run_folder, step=step)
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_remains(run_folder)
    folder.mkdir()
    sync_folder(folder.parent)
    return folder


def remove_remains(run_folder: Path) -> None:
    """Remove what interrupted saves have left, and free its space."""
    # Also `.replaced` folders go, unless one of them is the only checkpoint of its step.
    committed = set(committed_folders(run_folder).values())
    _remove(path for path, _ in _ours(run_folder) if path not in committed)


def partial_folder(run_folder: Path, *, step: int) -> Path:
    """Return the folder to which ranks write the shards of a step before they are committed.

    >>> partial_folder(Path("run"), step=100).as_posix()
    'run/checkpoints/step-00000100.partial'
    """
    assert step >= 0, step
    return run_folder / "checkpoints" / f"step-{step:08d}{_PARTIAL}"


def put_in_place(folder: Path) -> Path:
    """Rename a complete `.partial` folder to the name of its step, replacing an older one."""
    final = folder.with_name(folder.name.removesuffix(_PARTIAL))
    replaced = final.with_name(final.name + _REPLACED)
    # A folder cannot be renamed over another: the older one moves aside, and goes last, so that
    # there is a whole checkpoint of this step at any time.
    if final.exists():
        _remove([replaced])
        final.rename(replaced)
    folder.rename(final)
    sync_folder(final.parent)
    _remove([replaced])
    return final


def step_of(folder: Folder) -> int:
    """Return the step of a folder of any of the three kinds.

    >>> step_of(Path("run/checkpoints/step-00000100.partial"))
    100
    """
    return int(folder.name.removeprefix("step-").partition(".")[0])


def newest_first(run_folder: Path) -> tuple[Path, ...]:
    """Return all folders of committed checkpoints, latest first, whether or not they are intact.

    Of one step, the one that was replaced comes last.
    """
    ours = [(step, path) for path, step in _ours(run_folder) if path.suffix != _PARTIAL]
    return tuple(path for _, path in sorted(ours, key=lambda found: found[0]))[::-1]


def unfinished(run_folder: Path) -> tuple[Path, ...]:
    """Return the folders of saves that were not committed, the latest first."""
    return tuple(path for path, _ in _ours(run_folder) if path.suffix == _PARTIAL)


def discard(folder: Path) -> None:
    """Remove a folder that `begin_checkpoint` made, and free its space."""
    _remove([folder])


def prune(run_folder: Path, *, keep: int, newest: int, hooks: Hooks = NO_HOOKS) -> None:
    """Remove the committed checkpoints before step `newest`, which is valid, except `keep` - 1.

    Later steps stay, and do not count: a run that has resumed from an older checkpoint, because the
    newest is broken, will replace them.

    Raises:
        CheckpointError: `keep` is below 1.
    """
    if keep < 1:
        raise CheckpointError(f"`keep` must be at least 1, not {keep}; raise it")
    committed = committed_folders(run_folder)
    steps = sorted(step for step in committed if step <= newest)
    _remove((committed[step] for step in steps[:-keep]), hooks=hooks)


def committed_folders(run_folder: Path) -> dict[int, Path]:
    """Return the folder of each committed step; of two, the one that was not replaced."""
    return {
        step: path
        for path, step in _ours(run_folder)
        if path.suffix != _PARTIAL and (path / MANIFEST).exists()
    }


def _ours(run_folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders of all three kinds with their steps, but no other folders of the user.

    Of one step, the one that was replaced comes first.
    """
    for path in sorted((run_folder / "checkpoints").glob("step-*"), reverse=True):
        if match := _NAME.fullmatch(path.name):
            yield path, int(match[1])


def _remove(folders: Iterable[Path], *, hooks: Hooks = NO_HOOKS) -> None:
    """Remove folders, the manifest first: a folder that is only partly removed is no checkpoint."""
    for folder in folders:
        (folder / MANIFEST).unlink(missing_ok=True)
        hooks.before_save_phase(SavePhase.REMOVE)
        shutil.rmtree(folder, ignore_errors=True)
