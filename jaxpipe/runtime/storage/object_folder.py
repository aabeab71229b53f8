"""A prefix in object storage and its objects: the one border to fsspec.

Credentials and endpoints are those of the environment, as the libraries behind fsspec document it
(`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `AWS_ENDPOINT_URL`, an instance role); none is in a
configuration. Every failure becomes an `OSError` with the URL.
"""

import errno
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as OverdueError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from jaxpipe.errors import ConfigError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Result = TypeVar("Result")

EXTRA = "object-storage"
_WITH_FOLDERS = frozenset(("file", "local", "ftp", "hdfs", "sftp", "smb", "ssh", "webhdfs"))
"""What fsspec reaches as objects, and has folders: those of S3 would be buckets."""
ANSWERS_WITHIN_S = 30.0
"""A store that has not answered after this time is unreachable [s]."""


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """The objects whose names begin with `url` and a slash; a prefix exists if one object does.

    >>> folder = open_object_folder("memory://doctest/run")
    >>> folder.write("step-1/a.txt", [b"tok", b"ens"])
    >>> folder.sizes()
    {'step-1/a.txt': 6}
    >>> (folder / "step-1").read("a.txt"), folder.read_ranges("step-1/a.txt", [(1, 3)])
    (b'tokens', [b'ok'])
    >>> folder.remove(["step-1/a.txt"])
    >>> folder.sizes()
    {}
    """

    url: str
    _files: "AbstractFileSystem"
    setting: str = "checkpoint.folder"
    """The field of the configuration that has the URL."""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "ObjectFolder":
        return ObjectFolder(f"{self.url}/{name}", self._files, self.setting)

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    def sizes(self) -> dict[str, int]:
        """Return the size of each object in bytes, by its name behind the URL and the slash.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        with _errors_of(self.url):
            root = self._path("")
            self._files.invalidate_cache()
            entries = self._files.find(root, detail=True)
            assert isinstance(entries, dict), entries
            return {
                path.removeprefix(root): int(entry["size"])
                for path, entry in sorted(entries.items())
            }

    def size(self, file: str) -> int:
        """Return the size of an object in bytes.

        Raises:
            OSError: it is missing, or the store does not answer.
        """
        with _errors_of(f"{self.url}/{file}"):
            self._files.invalidate_cache()
            num_bytes = self._files.size(self._path(file))
            if num_bytes is None:
                raise OSError("its size is unknown")
            return num_bytes

    def read(self, file: str) -> bytes:
        """Return a whole object.

        Raises:
            OSError: it is missing, or the store does not answer.
        """
        with _errors_of(f"{self.url}/{file}"):
            content = self._files.cat_file(self._path(file))
            assert isinstance(content, bytes), type(content)
            return content

    def read_ranges(self, file: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return ranges of bytes of an object, each from the first to before the second number.

        Raises:
            OSError: it is missing or shorter, or the store does not answer.
        """
        with _errors_of(f"{self.url}/{file}"):
            begins, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
            # Concurrently, where the store allows it; on_error: not in place of the bytes.
            blobs = self._files.cat_ranges(
                [self._path(file)] * len(ranges), begins, ends, on_error="raise"
            )
            for (begin, end), content in zip(ranges, blobs, strict=True):
                if len(content) != end - begin:
                    raise OSError(f"it ends before byte {end:,}")
            return blobs

    def write(self, file: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write an object of these pieces: all of it, or nothing, and replace one of this name.

        At most a few pieces are in memory, and one part of an upload.

        Raises:
            OSError: the store refuses it, or does not answer.
        """
        with _errors_of(f"{self.url}/{file}"):
            path = self._path(file)
            self._make_folder(path)
            opened: Any = self._files.open(path, "wb", autocommit=False)  # of each store its own
            try:
                for piece in pieces:
                    opened.write(piece)
                opened.close()  # without `autocommit` it uploads, and commits nothing
                opened.commit()
            except BaseException:
                opened.discard()
                with suppress(AttributeError):  # else it would upload again when it is collected
                    opened.closed = True
                raise

    def put(self, file: str, content: bytes) -> None:
        """Write a small object in one request, and replace one of this name.

        Raises:
            OSError: the store refuses it, or does not answer.
        """
        with _errors_of(f"{self.url}/{file}"):
            path = self._path(file)
            self._make_folder(path)
            self._files.pipe_file(path, content)

    def remove(self, files: Iterable[str]) -> None:
        """Remove objects, in this order; one that is missing is no error.

        Raises:
            OSError: the store refuses it, or does not answer.
        """
        for file in files:
            with _errors_of(f"{self.url}/{file}"):
                try:
                    self._files.rm_file(self._path(file))
                except FileNotFoundError:
                    continue

    def check_reachable(self, *, timeout_s: float = ANSWERS_WITHIN_S) -> None:
        """Check that objects can be written, read, listed and removed here, with a small one.

        Raises:
            ConfigError: they cannot, or the store has not answered after `timeout_s`.
        """
        try:
            within(self._try_out, timeout_s=timeout_s)
        except OverdueError:
            problem = f"it has not answered after {timeout_s:g} s"
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return
        raise ConfigError(
            f"`{self.setting}` must be a URL to which this machine can write, is {self.url!r}: "
            f"{problem:.400}; check the bucket, the credentials in the environment and the endpoint"
        )

    def _try_out(self) -> None:
        """Do with two small objects what a save and a resume do, under a name of their own."""
        folder, content = f".try-{secrets.token_hex(8)}", secrets.token_bytes(8)
        names = (f"{folder}/shard", f"{folder}/manifest")
        try:
            self.write(names[0], [content[:4], content[4:]])
            self.put(names[1], content)
            (part,) = self.read_ranges(names[0], [(2, 8)])
            is_same = part == content[2:] and self.read(names[1]) == content
            sizes = self.sizes()
        finally:
            with suppress(OSError):  # the first error says more
                self.remove(names)
                self._remove_folder(folder)
        if not is_same or any(sizes.get(name) != len(content) for name in names):
            raise OSError(errno.EIO, "an object does not read back as it was written", self.url)
        if any(name in self.sizes() for name in names):
            raise OSError(errno.EIO, "an object cannot be removed", self.url)

    @property
    def is_of_process(self) -> bool:
        """Whether other processes have other objects under the same names."""
        return "memory" in self._protocols

    @property
    def _has_folders(self) -> bool:
        """Whether a file needs its folder first; a bucket knows names alone."""
        return not _WITH_FOLDERS.isdisjoint(self._protocols)

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocols = self._files.protocol
        return (protocols,) if isinstance(protocols, str) else tuple(protocols)

    def _make_folder(self, path: str) -> None:
        if self._has_folders:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _remove_folder(self, name: str) -> None:
        if self._has_folders:
            self._files.rmdir(self._path(name))

    def _path(self, file: str) -> str:
        path = self._files._strip_protocol(self.url)  # pyright: ignore[reportPrivateUsage]
        assert isinstance(path, str), path
        return f"{path}/{file}"


Folder: TypeAlias = Path | ObjectFolder
"""A local folder, or a prefix in object storage."""


def open_object_folder(url: str, *, setting: str = "checkpoint.folder") -> ObjectFolder:
    """Return the prefix of a URL, the value of a setting; asks no server for anything.

    Raises:
        ConfigError: fsspec, or what it needs for this URL, is not installed, or knows no such URL.
    """
    try:
        import fsspec
    except ImportError:
        raise _not_installed(url, setting, "fsspec is not installed") from None
    try:
        files, _ = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise _not_installed(url, setting, str(error)) from None
    except ValueError as error:
        raise ConfigError(
            f"`{setting}` must be a URL that fsspec knows, is {url!r:.80}: {error}; give one as "
            "s3://BUCKET/PREFIX"
        ) from None
    return ObjectFolder(url.rstrip("/"), files, setting)


def folder_named(text: str, *, setting: str = "checkpoint.folder") -> Folder:
    """Return the folder whose text this is, local or behind a URL.

    >>> folder_named("run/checkpoints").name
    'checkpoints'

    Raises:
        ConfigError: fsspec is not installed, or knows no such URL.
    """
    return open_object_folder(text, setting=setting) if "://" in text else Path(text)


def within(work: Callable[[], Result], *, timeout_s: float) -> Result:
    """Return what `work` returns, or raise what it raises; the thread that works is left behind.

    >>> within(lambda: 1 + 1, timeout_s=5.0)
    2

    Raises:
        TimeoutError: it has not returned after `timeout_s`.
    """
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=call, name="deadline of an object store", daemon=True).start()
    return future.result(timeout_s)


@contextmanager
def _errors_of(url: str) -> Iterator[None]:
    """Turn what libraries raise, each its own, into an `OSError` of a URL."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, f"{error}" or "no such object", url) from error
    except PermissionError as error:
        raise PermissionError(errno.EACCES, f"access is refused: {error}", url) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error


def _not_installed(url: str, setting: str, why: str) -> ConfigError:
    return ConfigError(
        f"`{setting}` {url!r:.80} needs the extra `{EXTRA}`: {why}; install jaxpipe[{EXTRA}], or "
        "name a folder of this machine"
    )
