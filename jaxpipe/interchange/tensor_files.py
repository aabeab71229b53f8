"""The safetensors files of a model on disk: one, or several with an index; read one by one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, for which safetensors asks by name
import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxpipe import foreign_file
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.foreign_file import (
    LFS_POINTER,
    LFS_WORDS,
    check_inside,
    check_regular,
    open_regular,
)
from jaxpipe.interchange.other_formats import way_in

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_MOST_JSON_BYTES: Final = 2**26
_PART_VALUES: Final = 2**24


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """The tensors of a folder, by their names; none is read before it is asked for.

    Some may be `stored` under another name.
    """

    files: Mapping[str, Path]
    stored: Mapping[str, str] = field(default_factory=dict)

    def with_others(self, others: "TensorFiles") -> "TensorFiles":
        """Return all tensors of both; where both have one, that of the others."""
        return TensorFiles({**self.files, **others.files}, {**self.stored, **others.stored})

    def read(self, name: str) -> np.ndarray:
        """Return one tensor.

        Raises:
            CheckpointError: its file is corrupt, or has a format without a dtype of NumPy.
        """
        with _opened(self.files[name]) as file:
            return file.get_tensor(self._key(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            CheckpointError: its file is corrupt.
        """
        with _opened(self.files[name]) as file:
            return tuple(file.get_slice(self._key(name)).get_shape())

    def part(self, name: str, rows: range) -> np.ndarray:
        """Return some of the first dim of a tensor.

        Raises:
            CheckpointError: its file is corrupt, or has a format without a dtype of NumPy.
        """
        with _opened(self.files[name]) as file:
            return file.get_slice(self._key(name))[rows.start : rows.stop]

    def dtype(self, name: str) -> str:
        """Return the format of a tensor, as safetensors names it, such as `BF16`.

        Raises:
            CheckpointError: its file is corrupt.
        """
        with _opened(self.files[name]) as file:
            return str(file.get_slice(self._key(name)).get_dtype())

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """Yield parts of a tensor along its first dim, some million values each.

        The file is opened for each part: what was read from it counts as memory until it is closed.

        Raises:
            CheckpointError: its file is corrupt, or has a format without a dtype of NumPy.
        """
        num_rows, *others = self.shape(name)
        step = max(1, _PART_VALUES // max(1, prod(others)))
        for first in range(0, num_rows, step):
            with _opened(self.files[name]) as file:
                yield file.get_slice(self._key(name))[first : min(first + step, num_rows)]

    def _key(self, name: str) -> str:
        return self.stored.get(name, name)


def open_file(path: Path) -> TensorFiles:
    """Return the tensors of one file.

    Raises:
        CheckpointError: it is missing or corrupt.
    """
    with _opened(path) as file:
        return TensorFiles(dict.fromkeys(file.keys(), path))


def open_tensors(folder: Path) -> TensorFiles:
    """Return the tensors of a folder: those in `model.safetensors`, or in the files of the index.

    Of both, the single file counts, as in `transformers`.

    Raises:
        CheckpointError: a file is missing or corrupt.
    """
    tensors = TensorFiles({})
    # Shards of a large model are one dictionary: their names do not overlap.
    for path in _files(folder):
        tensors = tensors.with_others(open_file(path))
    return tensors


def read_json(path: Path, error_type: type[ConfigError] | type[CheckpointError]) -> dict[str, Any]:
    """Return an object in JSON.

    Raises:
        ConfigError, CheckpointError: as given: the file cannot be read, or holds something else.
    """
    try:
        return foreign_file.read_json(path, dict[str, Any], most_bytes=_MOST_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise error_type(way_in(path.parent)) from None
    except (OSError, ValueError) as error:
        raise error_type(
            f"a model is a folder with {path.name}: {path} cannot be read "
            f"({foreign_file.reason_of(error)}); give the folder that `save_pretrained` wrote"
        ) from error


def _files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        raise CheckpointError(way_in(folder))
    path = folder / INDEX
    try:
        files = set(
            msgspec.convert(read_json(path, CheckpointError)["weight_map"], dict[str, str]).values()
        )
        return sorted(folder / check_inside(file, folder).name for file in files)
    except (KeyError, OSError, msgspec.ValidationError) as error:
        raise CheckpointError(
            f"`weight_map` must give the file of each tensor in this folder: {path} does not: "
            f"{error}; give the folder that `save_pretrained` wrote"
        ) from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        check_regular(path.stat(), path)  # links are: caches of downloads consist of them
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing; download it, too, or give the complete folder that "
            "`save_pretrained` wrote"
        ) from error
    # NumPy has no such dtype: AttributeError or TypeError, as safetensors looks for it.
    except (OSError, SafetensorError, AttributeError, TypeError) as error:
        if _begins_with(path, LFS_POINTER):
            raise CheckpointError(f"{path} must be safetensors: {LFS_WORDS}") from error
        raise CheckpointError(
            f"{path} cannot be read as safetensors ({error}); save the model with "
            "`save_pretrained`, which writes that"
        ) from error


def _begins_with(path: Path, mark: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(mark)) == mark
    except OSError:
        return False
