"""What `jaxpipe data prepare` was asked for, as the record of a dataset keeps it: to compare.

Options are kept as they were given, and files by their content: a source that was moved is the
same, one that has changed is not.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxpipe.errors import ConfigError, DataError
from jaxpipe.runtime.data.dataset.record import Record, read_record
from jaxpipe.runtime.data.dataset.tokenizer_files import read_tokenizer_files
from jaxpipe.runtime.data.preparation.source_files import source_files
from jaxpipe.runtime.storage.checksum import checksum_bytes, checksum_file

_CONTENT = " content"
_NOT_GIVEN = str(None)
"""Of an option, as records keep it."""


def request_of(options: Mapping[str, Any], *, is_text: bool) -> dict[str, str]:
    """Return options by their names on the command line, and checksums of the files they name.

    Raises:
        DataError: the files of a tokenizer cannot be read.
    """
    request = {
        f"--{name.replace('_', '-')}": value.name if isinstance(value, Path) else str(value)
        for name, value in options.items()
    }
    for name in ("source", "validation"):
        path = options[name]
        # A source that is gone is compared by its name.
        with suppress(DataError, OSError):
            if path is not None:
                request[f"--{name}{_CONTENT}"] = _checksum(
                    f"{file.relative_to(path) if path.is_dir() else ''} {checksum_file(file)}"
                    for file in _files(path, is_text=is_text)
                )
    if (tokenizer := options["tokenizer"]) is not None:
        files = read_tokenizer_files(tokenizer)
        request[f"--tokenizer{_CONTENT}"] = _checksum(
            f"{name} {checksum_bytes(content)}" for name, content in sorted(files.items())
        )
    return request


def check_same(out: Path, request: Mapping[str, str]) -> None:
    """Check that the dataset in a folder is what is asked for; all that differs is named.

    Raises:
        ConfigError: it is not.
    """
    record = read_record(out)
    saved = _of_older_version(record, request) if record.request is None else record.request
    differing = [
        f"`{name}` ({_shown(request[name])})"
        + (f" was {_shown(saved[name])}" if request[name] != saved[name] else " has changed")
        for name in request
        if name in saved and _differs(name, request, saved)
    ]
    if differing:
        raise ConfigError(
            f"{', '.join(differing)}, where {out} was prepared, which `--if-missing` keeps; name "
            "another folder, remove that one, or leave out `--if-missing`"
        )


def _differs(name: str, request: Mapping[str, str], saved: Mapping[str, str]) -> bool:
    if name.endswith(_CONTENT):
        return False  # with the option itself
    content = f"{name}{_CONTENT}"
    known = content in request and content in saved
    return request[content] != saved[content] if known else request[name] != saved[name]


def _of_older_version(record: Record, request: Mapping[str, str]) -> dict[str, str]:
    """Return what the record of an older version says about its options.

    A trained vocabulary may be smaller than asked for, if the text was short.
    """
    saved: dict[str, str] = {"--tokenizer": "None", "--vocabulary": "None"}
    if record.tokenizer != "bytes":
        asked = request["--vocabulary"]
        fits = asked == "None" or record.vocabulary <= int(asked)
        saved["--vocabulary"] = asked if fits else str(record.vocabulary)
        saved["--tokenizer"] = request["--tokenizer"]
        if asked == request["--tokenizer"]:  # neither
            saved["--tokenizer"] = f"byte pairs, vocabulary {record.vocabulary}"
    return saved if request["--source"] == "None" else {**saved, "--source": record.source}


def _files(path: Path, *, is_text: bool) -> Iterator[Path]:
    if is_text:
        files = source_files(path)
        yield from (*files.train, *files.held_out)
    elif path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.is_file())
    else:
        yield path


def _checksum(lines: Iterable[str]) -> str:
    return checksum_bytes("\n".join(lines).encode())


def _shown(value: str) -> str:
    return "not given" if value == _NOT_GIVEN else value
