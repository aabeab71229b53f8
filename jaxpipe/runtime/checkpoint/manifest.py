"""The manifest of a checkpoint: its tensors with their checksums. A folder without one is none."""

from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.foreign_file import check_inside
from jaxpipe.runtime.checkpoint.checkpoint_files import files_of
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.storage.checksum import seal, unseal
from jaxpipe.runtime.storage.object_folder import Folder

Dtype: TypeAlias = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bfloat16", "float16", "float32", "float64",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: its `file` in the checkpoint folder, and what it must be when it is read."""

    name: str
    file: str
    dtype: Dtype
    shape: tuple[int, ...]
    checksum: str

    def __post_init__(self) -> None:
        if min(self.shape, default=0) < 0:
            raise ValueError(f"`shape` must not be negative, is {list(self.shape)}")

    @property
    def num_bytes(self) -> int:
        """The size of the tensor by its dtype and shape."""
        each = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize
        return prod(self.shape) * each

    @property
    def layout(self) -> str:
        """Dtype and shape, as error messages show them."""
        return f"{self.dtype}{list(self.shape)}"


def corrupt(path: object, problem: str | Exception) -> CheckpointError:
    """Return the error of a checkpoint file that differs from what was saved."""
    if isinstance(problem, OSError):  # its text repeats the path
        problem = problem.strerror or problem
    return CheckpointError(
        f"`checkpoint` must be intact; {path} is not: {problem}; resume from an older step or from"
        " a copy, and see that all hosts share the folder"
    )


MANIFEST = "manifest.json"
_VERSION = 1
_MOST_STEPS = 2**31
_MOST_BYTES = 2**28
"""Of a manifest: 256 MiB, more than a million tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a checkpoint folder: each tensor once, and the metadata of the run.

    `copies` are tensors that a second file holds as well, as both ends of a tied model do;
    `headers` are the checksums of the headers of all files. With both, every byte has a checksum;
    manifests of older versions lack them.
    """

    step: int
    metadata: dict[str, Any]
    tensors: tuple[TensorEntry, ...]
    copies: tuple[TensorEntry, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.step < _MOST_STEPS:
            raise ValueError(f"`step` must be from 0 to below {_MOST_STEPS:,}, is {self.step}")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` with its own checksum; `metadata` must be JSON, without NaN."""
    write_durably(folder / MANIFEST, sealed(manifest))


def sealed(manifest: Manifest) -> bytes:
    """Return the content of `manifest.json`."""
    return seal(msgspec.to_builtins(manifest), version=_VERSION)


def read_manifest(folder: Folder) -> Manifest:
    """Read `manifest.json`.

    Raises:
        CheckpointError: it is missing, corrupt or of another format version, or names a file
            outside of its folder.
    """
    try:
        content = files_of(folder).content(MANIFEST, most_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise corrupt(folder / MANIFEST, error) from None
    return parse_manifest(content, folder)


def parse_manifest(content: bytes, folder: Folder) -> Manifest:
    """Return the manifest with this content, of a folder.

    Raises:
        CheckpointError: it is corrupt or of another format version, or names a file outside.
    """
    try:
        manifest = msgspec.convert(unseal(content, version=_VERSION), Manifest)
        for entry in (*manifest.tensors, *manifest.copies):
            check_inside(entry.file, Path())
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise corrupt(folder / MANIFEST, error) from None
    return manifest
