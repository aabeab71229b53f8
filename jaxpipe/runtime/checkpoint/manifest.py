"""The manifest of a checkpoint: its tensors with their checksums. A folder without one is none."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.storage.checksum import seal, unseal

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

    @property
    def layout(self) -> str:
        """Dtype and shape, as error messages show them."""
        return f"{self.dtype}{list(self.shape)}"


def corrupt(path: Path, problem: str) -> CheckpointError:
    """Return the error of a checkpoint file that differs from what was saved."""
    return CheckpointError(
        f"`checkpoint` must be intact; {path} is not: {problem}; resume from an older step or from"
        " a copy, and see that all hosts share the folder"
    )


MANIFEST = "manifest.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a checkpoint folder: each tensor once, and the metadata of the run."""

    step: int
    metadata: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` with its own checksum; `metadata` must be JSON, without NaN."""
    write_durably(folder / MANIFEST, seal(msgspec.to_builtins(manifest), version=_VERSION))


def read_manifest(folder: Path) -> Manifest:
    """Read `manifest.json`.

    Raises:
        CheckpointError: it is missing, corrupt or of another format version.
    """
    path = folder / MANIFEST
    try:
        return msgspec.convert(unseal(path.read_bytes(), version=_VERSION), Manifest)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise corrupt(path, str(error)) from None
