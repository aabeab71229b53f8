r"""The door for files that others wrote: regular, inside their folder, bounded, strictly decoded.

A pipe in the place of a file would be waited for, a device read for ever, a file of any size taken
into memory, and a link followed to where it leads. So every file that may come from a stranger is
read here::

    path ─► regular? in its folder? small enough? ─► UTF-8? ─► JSON of this type, not too deep?
                └ OSError                               └───────────┴ ValueError, with the line

No other exception leaves the door, so a reader translates these two, and names the file and the
fix. `tests/test_foreign_files.py` lists all readers, and the few files that are read elsewhere.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar, overload

import msgspec

MOST_DEPTH: Final = 100
"""Levels of nesting in a document."""
MOST_LINE_BYTES: Final = 2**24
"""Of one line of a file that is read line by line."""

LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""What a clone without Git LFS has in the place of a large file."""
LFS_WORDS: Final = "it is a pointer of Git LFS; run `git lfs pull` in its folder"
_BOM: Final = b"\xef\xbb\xbf"
_OTHER_BOMS: Final = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
_T = TypeVar("_T")


def open_regular(
    path: Path, *, most_bytes: int | None = None, inside: bool = False
) -> BufferedReader:
    """Open a regular file for reading; with `inside`, no link may lead out of its folder.

    Raises:
        OSError: it is missing, something else than a file, larger than `most_bytes`, or elsewhere.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    if inside:
        path, flags = check_link(path), flags | os.O_NOFOLLOW
    try:
        # Before it is opened: that alone may start a device. Without O_NONBLOCK, opening a pipe
        # that has come meanwhile waits until somebody writes to it.
        check_regular(path.stat(), path)
        descriptor = os.open(path, flags)
    except ValueError:  # a zero byte in the name
        raise OSError(errno.EINVAL, "it is not the name of a file", f"{path!s:.80}") from None
    file = open(descriptor, "rb")  # noqa: SIM115  it is the caller's
    try:
        status = os.fstat(descriptor)
        check_regular(status, path)
        if most_bytes is not None and status.st_size > most_bytes:
            raise _too_large(path, most_bytes)
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, *, most_bytes: int, inside: bool = False) -> bytes:
    """Return the content of a regular file of at most `most_bytes`; see `open_regular`.

    >>> read_regular(Path("/dev/null"), most_bytes=10)
    Traceback (most recent call last):
    OSError: [Errno 22] it is not a regular file: '/dev/null'

    Raises:
        OSError: as `open_regular`.
    """
    with open_regular(path, most_bytes=most_bytes, inside=inside) as file:
        content = file.read(most_bytes + 1)  # a file may grow, and those of /proc have no size
    if len(content) > most_bytes:
        raise _too_large(path, most_bytes)
    return content


def read_text(path: Path, *, most_bytes: int, inside: bool = False) -> str:
    """Return the text of a regular file in UTF-8; see `read_regular` and `decode_text`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8.
    """
    return decode_text(read_regular(path, most_bytes=most_bytes, inside=inside))


@overload
def read_json(path: Path, *, most_bytes: int, inside: bool = ...) -> Any: ...
@overload
def read_json(path: Path, kind: type[_T], *, most_bytes: int, inside: bool = ...) -> _T: ...
def read_json(path: Path, kind: Any = Any, *, most_bytes: int, inside: bool = False) -> Any:
    """Return the JSON of a regular file, as `kind`; see `read_regular` and `parse_json`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not such JSON.
    """
    return parse_json(read_regular(path, most_bytes=most_bytes, inside=inside), kind)


def open_text(path: Path) -> TextIO:
    """Open a regular file of any size, in UTF-8; line ends stay, a mark before the text does not.

    Reading raises `UnicodeDecodeError`, a `ValueError`, where it is not UTF-8.

    Raises:
        OSError: as `open_regular`.
    """
    return TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="")


def read_lines(path: Path, *, most_bytes: int, inside: bool = False) -> Iterator[bytes]:
    """Yield the lines of a regular file, with their ends, as they are read.

    Raises:
        OSError: as `open_regular`, or a line has more than `MOST_LINE_BYTES`.
    """
    with open_regular(path, most_bytes=most_bytes, inside=inside) as file:
        while line := file.readline(MOST_LINE_BYTES + 1):
            if len(line) > MOST_LINE_BYTES and not line.endswith(b"\n"):
                raise _too_large(path, MOST_LINE_BYTES, part="a line of ")
            yield line


def decode_text(content: bytes) -> str:
    r"""Return bytes in UTF-8 as text, without the mark that some editors put before it.

    >>> decode_text(b"\xef\xbb\xbfa = 1")
    'a = 1'
    >>> decode_text(b"a\nb\xff")
    Traceback (most recent call last):
    ValueError: cannot decode line 2: byte 0xff is not UTF-8; save the file as UTF-8

    Raises:
        ValueError: they are not UTF-8; it names the line. Or they stand for a file elsewhere.
    """
    if content.startswith(LFS_POINTER):
        raise ValueError(LFS_WORDS)
    for mark, name in _OTHER_BOMS:
        if content.startswith(mark):
            raise ValueError(f"cannot decode the text: it is {name}; save the file as UTF-8")
    try:
        return content.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"cannot decode line {line}: byte {error.object[error.start]:#04x} is not UTF-8; save "
            "the file as UTF-8"
        ) from None


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text without their ends, `\n` or `\r\n`, as other programs count them.

    `str.splitlines` ends lines at form feeds, U+2028 and five other characters as well: it would
    read what others take for a part of a word or of a comment.

    >>> lines_of("# a\u2028b\r\nc\x0cd\n")
    ['# a\u2028b', 'c\x0cd']
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


@overload
def parse_json(content: bytes | str) -> Any: ...
@overload
def parse_json(content: bytes | str, kind: type[_T]) -> _T: ...
def parse_json(content: bytes | str, kind: Any = Any) -> Any:
    r"""Return a JSON document as a value of `kind`, which may be any by default.

    >>> parse_json(b'{"a": 1}', dict[str, int])
    {'a': 1}
    >>> parse_json(b'{"a":\n x}')
    Traceback (most recent call last):
    ValueError: cannot parse line 2 as JSON: invalid character

    Raises:
        ValueError: it is not UTF-8, not JSON, nested more than `MOST_DEPTH` deep, or of another
            type.
    """
    text = content if isinstance(content, str) else decode_text(content)
    try:
        tree = msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except ValueError as error:  # also a lone surrogate, a number of too many digits
        raise ValueError(_with_line(str(error), text)) from None
    check_depth(tree)
    return tree


def parse_number_json(content: bytes | str) -> Any:
    """Return a JSON document of a Python program, which may hold `NaN` and `Infinity`.

    Raises:
        ValueError: as `parse_json`.
    """
    try:
        tree = json.loads(content if isinstance(content, str) else decode_text(content))
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        # A document of one line is one of several in its file, whose reader counts them.
        line = f"line {error.lineno} " if "\n" in error.doc else ""
        raise ValueError(f"cannot parse {line}as JSON: {error.msg}") from None
    check_depth(tree)
    return tree


def check_depth(tree: Any) -> None:
    """Check that lists and dictionaries are nested at most `MOST_DEPTH` deep.

    Raises:
        ValueError: they are deeper.
    """
    level = [tree] if isinstance(tree, dict | list) else []
    for _ in range(MOST_DEPTH):
        inner = (v for t in level for v in (t.values() if isinstance(t, dict) else t))
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise _too_deep()


def reason_of(error: OSError | ValueError) -> str:
    """Return why the door has refused a file, for the message that names the file.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a"))
    'No such file or directory'
    """
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_regular(status: os.stat_result, path: Path) -> None:
    """Check that what the system says of a path is a regular file.

    Raises:
        OSError: it is a folder, a pipe, a device, a socket or a link.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def check_link(path: Path) -> Path:
    """Return where a file is, after all links: in its folder, or below it.

    Raises:
        OSError: it is missing, or links lead out of its folder, or in a circle.
    """
    folder = path.parent.resolve()
    try:
        target = path.resolve(strict=True)
    except (RuntimeError, ValueError):  # a circle, before Python 3.13; a zero byte
        raise OSError(errno.ELOOP, "it is a link that leads nowhere", str(path)) from None
    if not target.is_relative_to(folder):
        raise OSError(errno.EXDEV, "it is a link that leads out of its folder", str(path))
    return target


def check_inside(file: str, folder: Path) -> Path:
    """Return the path of a file that another file of `folder` names: a plain name, nothing else.

    >>> check_inside("stage-0.safetensors", Path("checkpoint")).as_posix()
    'checkpoint/stage-0.safetensors'

    Raises:
        OSError: the name leads out of the folder, or into another.
    """
    if file in ("", ".", "..") or "/" in file or "\0" in file:
        raise OSError(errno.EINVAL, "it is not the name of a file in this folder", f"{file:.80}")
    return folder / file


def write_inside(folder: Path, file: str, text: str, *, mode: int = 0o666) -> Path:
    """Write a file of this name into a folder, but through no link; return its path.

    Raises:
        OSError: the name leads elsewhere, or the folder has something else than a file there.
    """
    path = check_inside(file, folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(error.errno, "it is a link: remove it", str(path)) from None
    with open(descriptor, "w", encoding="utf-8") as opened:
        check_regular(os.fstat(descriptor), path)
        opened.write(text)
    return path


def _with_line(message: str, text: str) -> str:
    """Return msgspec's message about malformed JSON with the line in place of the byte."""
    reason, _, position = message.removeprefix("JSON is malformed: ").partition(" (byte ")
    digits = position.rstrip(")")
    if not digits.isdecimal():
        return f"cannot parse as JSON: {message}"
    line = text.encode("utf-8", "surrogatepass").count(b"\n", 0, int(digits)) + 1
    return f"cannot parse line {line} as JSON: {reason}"


def _too_deep() -> ValueError:
    return ValueError(f"cannot parse as JSON: it is nested more than {MOST_DEPTH} deep")


def _too_large(path: Path, most_bytes: int, *, part: str = "") -> OSError:
    return OSError(errno.EFBIG, f"it has {part}more than {most_bytes:,} bytes", str(path))
