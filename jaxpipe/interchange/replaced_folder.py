"""A folder that is replaced as a whole: a reader sees the old files or the new ones, never a mix.

::

    write .NAME.new-PID ─► move what is not replaced into it ─► NAME becomes .NAME.old-PID
                                                            ─► .NAME.new-PID becomes NAME

For the moment between the two renames there is no such folder.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from jaxpipe.errors import CheckpointError

STALE: tuple[str, ...] = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "adapter_model.bin",
)
"""The files of a model, of which none may stay beside those of another."""


@contextmanager
def replaced_folder(folder: Path, names: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder, which takes the place of `folder` if nothing is raised.

    Files of other kinds stay, but for those with one of `names`.

    Raises:
        CheckpointError: the folder cannot be written, or processes work in it: this one does.
    """
    target = folder.resolve()
    if Path.cwd().is_relative_to(target):
        raise CheckpointError(
            f"`--out` {folder} is replaced as a whole, and must not be the working directory or "
            "one above it; name another folder"
        )
    new, old = (target.with_name(f".{target.name}.{end}-{os.getpid()}") for end in ("new", "old"))
    try:
        new.mkdir(parents=True)
        yield new
        others = [] if not target.exists() else sorted(target.iterdir())
        # Links and not copies: the old folder is whole until it has another name.
        for path in others:
            is_stale = path.name in names or any(fnmatchcase(path.name, name) for name in STALE)
            if not is_stale and not (new / path.name).exists():
                _link(path, new / path.name)
        if others or target.exists():
            target.rename(old)
        new.rename(target)
    except OSError as error:
        raise CheckpointError(
            f"`--out` {folder} cannot be written: {error}; name another folder"
        ) from error
    finally:
        if old.exists() and not target.exists():  # an error, or Ctrl-C, between the two renames
            old.rename(target)
        for path in (new, old):
            shutil.rmtree(path, ignore_errors=True)


def _link(path: Path, target: Path) -> None:
    """Give a file, or those of a folder, a second name."""
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, target, symlinks=True, copy_function=os.link)
    else:
        os.link(path, target, follow_symlinks=False)
