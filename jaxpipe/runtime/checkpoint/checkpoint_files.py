"""The files of one checkpoint, read from a local folder or from object storage."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, for which safetensors asks by name
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxpipe.foreign_file import check_regular, open_regular, read_regular
from jaxpipe.runtime.checkpoint.object_storage.object_shard import ObjectShard
from jaxpipe.runtime.checkpoint.shard_header import LENGTH_BYTES
from jaxpipe.runtime.storage.object_folder import Folder, ObjectFolder


class ShardFile(Protocol):
    """An open safetensors file."""

    @property
    def header(self) -> bytes:
        """What precedes the tensors: the length of their list, and the list."""
        ...

    def keys(self) -> Iterable[str]:
        """The names of the tensors."""
        ...

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield tensors with their names, in any order."""
        ...


class CheckpointFiles(Protocol):
    """The files in the folder of a checkpoint; every method raises `OSError` or `ValueError`."""

    def content(self, file: str, *, most_bytes: int) -> bytes:
        """Return all bytes of a small file."""
        ...

    def size(self, file: str) -> int:
        """Return the number of bytes of a file."""
        ...

    def shard(self, file: str) -> AbstractContextManager[ShardFile]:
        """Open a safetensors file."""
        ...

    def strays(self) -> tuple[str, ...]:
        """Return the names of files that, if no manifest lists them, are damage."""
        ...


def files_of(folder: Folder) -> CheckpointFiles:
    """Return the files of a checkpoint in this folder."""
    return _LocalFiles(folder) if isinstance(folder, Path) else _ObjectFiles(folder)


class _LocalFiles:
    """Those of a local folder: only regular files, since a pipe would be waited for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def content(self, file: str, *, most_bytes: int) -> bytes:
        return read_regular(self._folder / file, most_bytes=most_bytes)

    def size(self, file: str) -> int:
        return (self._folder / file).lstat().st_size

    @contextmanager
    def shard(self, file: str) -> Iterator[ShardFile]:
        path = self._folder / file
        check_regular(path.lstat(), path)
        try:
            with safe_open(path, framework="numpy") as opened:
                yield _LocalShard(path, opened)
        except (SafetensorError, AttributeError) as error:
            raise ValueError(str(error)) from None

    def strays(self) -> tuple[str, ...]:
        return tuple(path.name for path in sorted(self._folder.glob("*.safetensors")))


class _LocalShard:
    def __init__(self, path: Path, opened: safe_open) -> None:
        self._path, self._opened = path, opened

    @property
    def header(self) -> bytes:
        with open_regular(self._path) as file:
            begin = file.read(LENGTH_BYTES)
            return begin + file.read(int.from_bytes(begin, "little"))

    def keys(self) -> Iterable[str]:
        return self._opened.keys()

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self._opened.get_tensor(name)


class _ObjectFiles:
    """Those in object storage. Objects that no manifest lists are left by interrupted saves."""

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder

    def content(self, file: str, *, most_bytes: int) -> bytes:
        if (size := self.size(file)) > most_bytes:
            raise ValueError(f"it has {size:,} bytes, more than {most_bytes:,}")
        return self._folder.read(file)

    def size(self, file: str) -> int:
        return self._folder.size(file)

    def shard(self, file: str) -> AbstractContextManager[ShardFile]:
        return nullcontext(ObjectShard(self._folder, file))

    def strays(self) -> tuple[str, ...]:
        return ()
