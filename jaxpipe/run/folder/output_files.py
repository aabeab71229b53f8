"""The files that a command writes: checked before its work, and announced if they replace one.

A path that cannot be written must not cost the minutes of a search, and no file is replaced without
a line that says so.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from jaxpipe.errors import ConfigError
from jaxpipe.pictures import check_format
from jaxpipe.run.terminal.console import errors


def check_output(flag: str, path: Path | None) -> None:
    """Check that a file can be written, and announce it if it replaces one; None is no file.

    Raises:
        ConfigError: its folder is missing or cannot be written, or the path is a folder.
    """
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"`{flag}` must name a file, {path} is a folder; add a name to it")
    if not folder.is_dir():
        raise ConfigError(f"`{flag}` {path} is in no folder: {folder} is missing; make it first")
    is_file = path.exists()
    if not os.access(path if is_file else folder, os.W_OK):
        raise ConfigError(f"`{flag}` {path} cannot be written; name another file")
    if is_file:
        announce_replaced((path,))


def check_picture(flag: str, path: Path | None) -> None:
    """Check that a picture can be drawn and written; see `check_output`.

    Raises:
        ConfigError: the name of the file says no known format, or it cannot be written.
        UserError: matplotlib is missing.
    """
    if path is None:
        return
    check_format(path, name=flag)
    check_output(flag, path)


def check_output_folder(flag: str, folder: Path, names: Iterable[str] = ()) -> None:
    """Check that a folder can be made and written, and announce which files in it are replaced.

    Raises:
        ConfigError: it is a file, or cannot be made or written.
    """
    existing = _nearest_existing(folder)
    if not existing.is_dir():
        raise ConfigError(f"`{flag}` must name a folder, {existing} is a file; name another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"`{flag}` {folder} cannot be written; name another folder")
    announce_replaced(folder / name for name in names)


def _nearest_existing(folder: Path) -> Path:
    """Return the folder if it exists, else the nearest of its parents that does."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def check_run_folder(folder: Path) -> None:
    """Check that the folder of a run can be made and written, by making one beside it for a moment.

    Permissions do not say it all: root may write everywhere, but in no `/proc`.

    Raises:
        ConfigError: it cannot.
    """
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".try-", dir=_nearest_existing(folder)))
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> ConfigError:
    """Return the error of a run whose folder cannot be made or written."""
    return ConfigError(
        f"`run.folder` must be a folder that can be written, is {str(folder)!r:.80}: "
        f"{error.strerror}"
    )


def announce_replaced(paths: Iterable[Path]) -> None:
    """Print a line on standard error that names the files that exist: the result replaces them."""
    replaced = [str(path) for path in paths if path.exists()]
    if replaced:
        errors.print(f"the result replaces {', '.join(replaced)}", markup=False)
