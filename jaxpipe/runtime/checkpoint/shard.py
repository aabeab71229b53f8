"""One safetensors file: the tensors of one stage, verified when they are read."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast, get_args

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint.checkpoint_files import files_of
from jaxpipe.runtime.checkpoint.manifest import Dtype, TensorEntry, corrupt
from jaxpipe.runtime.storage.checksum import checksum_array, checksum_bytes
from jaxpipe.runtime.storage.object_folder import Folder


def unwritable(path: Path, error: Exception) -> CheckpointError:
    """Return the error of a file that cannot be written."""
    return CheckpointError(
        f"`checkpoint` must be writable; {path} is not: {error}; free some space, or"
        " name another run folder"
    )


def read_shard(folder: Folder, file: str, entries: Iterable[TensorEntry]) -> dict[str, np.ndarray]:
    """Read the tensors of some entries of one file.

    Raises:
        CheckpointError: the file or a tensor is missing, or a tensor differs from its entry.
    """
    tensors: dict[str, np.ndarray] = {}
    expected = {entry.name: entry for entry in entries}
    try:
        with files_of(folder).shard(file) as opened:
            for name, tensor in opened.tensors(tuple(expected)):
                _verify(tensor, expected[name], folder / file)
                tensors[name] = tensor
    except (OSError, ValueError) as error:
        raise corrupt(folder / file, error) from None
    return tensors


def check_shard(folder: Folder, file: str, names: Iterable[str]) -> None:
    """Check that the file is whole and lists exactly the tensors of these names; reads none.

    Raises:
        CheckpointError: it is missing, truncated, or lists other tensors.
    """
    expected, listed = set(names), listed_in(folder, file)
    if missing := expected - listed:
        raise corrupt(folder / file, f"it lacks the tensor {min(missing)}")
    if unknown := listed - expected:
        raise corrupt(
            folder / file, f"it holds the tensor {min(unknown)}, which the manifest lacks"
        )


def listed_in(folder: Folder, file: str) -> set[str]:
    """Return the names of the tensors that a whole file holds, by its header.

    Raises:
        CheckpointError: it is missing or truncated.
    """
    try:
        with files_of(folder).shard(file) as opened:
            return set(opened.keys())
    except (OSError, ValueError) as error:
        raise corrupt(folder / file, error) from None


def checksum_header(folder: Folder, file: str) -> str:
    """Return the checksum of what precedes the tensors: the length of the list, and the list.

    Raises:
        CheckpointError: the file is missing or truncated.
    """
    try:
        with files_of(folder).shard(file) as opened:
            return checksum_bytes(opened.header)
    except (OSError, ValueError) as error:
        raise corrupt(folder / file, error) from None


def entries_of(arrays: Mapping[str, np.ndarray], *, file: str) -> tuple[TensorEntry, ...]:
    """Return the entries of the tensors of one file.

    Raises:
        CheckpointError: a dtype is not supported by the format.
    """
    return tuple(
        TensorEntry(
            name=name,
            file=file,
            dtype=dtype_of(name, array),
            shape=array.shape,
            checksum=checksum_array(array),
        )
        for name, array in arrays.items()
    )


def dtype_of(name: str, array: np.ndarray) -> Dtype:
    """Return the dtype of a tensor.

    Raises:
        CheckpointError: it is not supported by the format.
    """
    dtype = array.dtype.name
    if dtype not in get_args(Dtype):
        raise CheckpointError(
            f"`dtype` of a tensor must be one of {', '.join(get_args(Dtype))}; that of {name} is"
            f" {dtype}; cast it before it is saved"
        )
    return cast(Dtype, dtype)


def _verify(tensor: np.ndarray, entry: TensorEntry, path: object) -> None:
    layout = f"{tensor.dtype.name}{list(tensor.shape)}"
    if layout != entry.layout:
        raise corrupt(path, f"the tensor {entry.name} is {layout}, not {entry.layout}")
    if checksum_array(tensor) != entry.checksum:
        raise corrupt(path, f"the tensor {entry.name} does not match its checksum")
