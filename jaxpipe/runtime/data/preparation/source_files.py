"""The files of a source: those to train on, those of its own held-out split, those left out.

::

    my-data/train-0.parquet        train
            validation-0.parquet   held out; also valid, val, dev
            test-0.parquet         left out; also testing, eval, evaluation
            README.md, .cache/x    left out, as are formats that are not read
            package.json           left out: JSON without records

A path inside of a folder, or what a pattern matches, says which a file is. A file that is named by
itself is read whatever its name.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from typing import Final

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.preparation.arrow_rows import saved_files, saved_splits
from jaxpipe.runtime.data.preparation.file_format import (
    SUFFIXES,
    FormatKind,
    format_of,
    kind_named,
)
from jaxpipe.runtime.data.preparation.record_rows import stray_json

_HELD_OUT: Final = re.compile(r"(^|[^a-z])(validation|valid|val|dev)([^a-z]|$)")
_TEST: Final = re.compile(r"(^|[^a-z])(test|testing|eval|evaluation)([^a-z]|$)")
_ABOUT: Final = re.compile(r"(readme|licen[cs]e|notice|citation|dataset_infos?)([^a-z]|$)")
_REMOTE: Final = re.compile(r"([a-z][a-z0-9+]*):/+(.+)")
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
_DOWNLOADS: Final = {
    "hf": "hf download --repo-type dataset {hub} --local-dir FOLDER",
    "s3": "aws s3 cp --recursive s3://{rest} FOLDER",
    "gs": "gcloud storage cp -r gs://{rest} FOLDER",
    "gcs": "gcloud storage cp -r gs://{rest} FOLDER",
    "http": "curl -LO http://{rest}",
    "https": "curl -LO https://{rest}",
}
_MOST_NAMES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Files in the order in which they are read, and the reason of each that is left out."""

    train: tuple[Path, ...] = ()
    held_out: tuple[Path, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    def without_held_out(self, reason: str) -> "SourceFiles":
        """Return the files with those of the held-out split left out, for a reason."""
        held_out = tuple((path.name, reason) for path in self.held_out)
        return replace(self, held_out=(), left_out=(*held_out, *self.left_out))

    def with_records(self, names: Sequence[str]) -> "SourceFiles":
        """Return the files without those of JSON that are no records with these fields."""
        reasons = {path: _stray(path, names) for path in (*self.train, *self.held_out)}
        stray = [(path.name, reason) for path, reason in reasons.items() if reason is not None]
        return SourceFiles(
            train=tuple(path for path in self.train if reasons[path] is None),
            held_out=tuple(path for path in self.held_out if reasons[path] is None),
            left_out=(*stray, *self.left_out),
        )

    @property
    def report(self) -> str:
        """What is left out, and why; empty if nothing is."""
        lines = [f"{name} ({reason})" for name, reason in self.left_out]
        more = f" and {len(lines) - _MOST_NAMES} more" if len(lines) > _MOST_NAMES else ""
        return ", ".join(lines[:_MOST_NAMES]) + more


def source_files(path: Path, *, names: Sequence[str] = ()) -> SourceFiles:
    """Return the files of a file, a folder or a pattern such as `data/*.jsonl`.

    With `names`, those of the fields that records have, files of JSON without are left out.

    Raises:
        DataError: it does not exist, has nothing to train on, or is not on this machine.
    """
    if path.is_file():
        return SourceFiles(train=(path,))
    if path.is_dir():
        splits = saved_splits(path) or {"train": saved_files(path)}
        files = _saved(path, splits) if any(splits.values()) else _in_folder(path)
    elif has_magic(str(path)):
        files = _matching(path)
    else:
        raise _missing(path)
    if names:
        files = files.with_records(names)
    if not files.train:
        others = files.without_held_out("the held-out split").report
        raise DataError(
            f"`source` must hold files to train on ({', '.join(SUFFIXES)}, or compressed); {path} "
            f"has none{f', but {others}' if others else ''}; name a file or another folder"
        )
    return files


def _in_folder(folder: Path) -> SourceFiles:
    paths = sorted(file for file in folder.rglob("*") if not file.is_dir())
    return _sorted_out((path, path.relative_to(folder).as_posix()) for path in paths)


def _matching(pattern: Path) -> SourceFiles:
    paths = (Path(name) for name in sorted(glob(str(pattern), recursive=True)))
    files = [path for path in paths if not path.is_dir()]
    sorted_out = _sorted_out((path, path.name) for path in files)
    if _split_of(pattern.name):  # the pattern itself says that they are meant
        return SourceFiles(train=tuple(files))
    return sorted_out


def _sorted_out(names: Iterator[tuple[Path, str]]) -> SourceFiles:
    train, held_out, left_out = [], [], []
    for path, name in names:
        reason = _reason(path, name)
        if reason is not None:
            left_out.append((name, reason))
        elif _split_of(name) == "held out":
            held_out.append(path)
        else:
            train.append(path)
    return SourceFiles(train=tuple(train), held_out=tuple(held_out), left_out=tuple(left_out))


def _reason(path: Path, name: str) -> str | None:
    """Return why a file is left out; None if it is read."""
    parts = name.lower().split("/")
    if any(part.startswith((".", "__")) for part in parts):
        return "hidden"
    if not path.is_file():
        return "no file"
    if _ABOUT.match(parts[-1]):
        return "about the data"
    if kind_named(name) is None:
        return f"{path.suffix} is not read" if path.suffix else "no format in its name"
    return "the test split" if _split_of(name) == "test" else None


def _stray(path: Path, names: Sequence[str]) -> str | None:
    """Return why a file has no records with these fields; None if it may have some."""
    if kind_named(path.name) is not FormatKind.JSON:
        return None
    try:
        return stray_json(path, format_of(path), names)
    except DataError:
        return None  # the same error, where it is read


def _split_of(name: str) -> str | None:
    lower = name.lower()
    if _TEST.search(lower):
        return "test"
    return "held out" if _HELD_OUT.search(lower) else None


def _saved(folder: Path, splits: dict[str, list[Path]]) -> SourceFiles:
    """Return the files of a dataset with splits, by their names."""
    if "train" not in splits:
        raise DataError(
            f"`source` must have a split `train`; {folder} has {', '.join(splits):.120}; name the "
            "folder of one split"
        )
    files = SourceFiles()
    for name, paths in splits.items():
        if name == "train":
            files = replace(files, train=tuple(paths))
        elif _split_of(name) == "held out":
            files = replace(files, held_out=(*files.held_out, *paths))
        else:
            reason = "the test split" if _split_of(name) == "test" else "another split"
            files = replace(files, left_out=(*files.left_out, (name, reason)))
    return files


def _missing(path: Path) -> DataError:
    """Return the error of a path that does not exist, with the download of what is elsewhere."""
    remote = _REMOTE.fullmatch(path.as_posix())
    if remote is not None:
        scheme, rest = remote.groups()
        hub = "/".join(rest.removeprefix("datasets/").split("/")[:2])
        command = _DOWNLOADS.get(scheme, "").format(rest=rest, hub=hub)
        fix = f"download it with `{command}`" if command else "download it"
        return DataError(f"`source` must be on this machine, not {scheme}://{rest}; {fix}")
    hub = ""
    if _HUB_NAME.fullmatch(str(path)) and not path.parent.exists():
        command = _DOWNLOADS["hf"].format(hub=path)
        hub = f", or download a dataset of the hub with `{command}`"
    fault = "is no regular file" if path.exists() else "does not exist"
    return DataError(
        f"`source` must be a file, a folder or a pattern; {path} {fault}; check it{hub}"
    )
