"""What a manifest says of one tensor, and how ranks hand these entries to each other.

The error of a checkpoint that is not what was saved.

The table of contents of a checkpoint, which is one only when this file is in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.storage.checksummed_json import seal, unseal

Dtype: TypeAlias = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bfloat16", "float16", "float32", "float64",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: in which file it lies, and what it must be when it is read.

    `file` is a name within the folder of the checkpoint.
    """

    name: str
    file: str
    dtype: Dtype
    shape: tuple[int, ...]
    checksum: str

    @property
    def layout(self) -> str:
        """Dtype and shape, as errors show them."""
        return f"{self.dtype}{list(self.shape)}"


def encode_entries(entries: Iterable[TensorEntry]) -> bytes:
    """Return entries as JSON, to be sent to the rank that commits.

    >>> entry = TensorEntry(name="a", file="f", dtype="bool", shape=(2, 3), checksum="0")
    >>> decode_entries(encode_entries([entry])) == (entry,)
    True
    """
    return msgspec.json.encode(tuple(entries))


def decode_entries(data: bytes) -> tuple[TensorEntry, ...]:
    """Return the entries that `encode_entries` encoded.

    Raises:
        CheckpointError: they did not arrive as they were sent.
    """
    try:
        return msgspec.json.decode(data, type=tuple[TensorEntry, ...])
    except msgspec.DecodeError as error:
        raise CheckpointError(
            f"`entries` must be what another rank encoded, not {data[:40]!r}: {error}; use the same"
            " version of jaxpipe on every host"
        ) from None


def corrupt(path: Path, problem: str) -> CheckpointError:
    """Return the error that says what is wrong with a file."""
    return CheckpointError(
        f"`checkpoint` must be intact; {path} is not: {problem}; resume from an older step or from"
        " a copy, and see that all hosts share the folder"
    )


MANIFEST = "manifest.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the folder holds: the tensors, each name once, and what the run says of itself."""

    step: int
    metadata: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, sealed by a checksum; `metadata` must be of JSON, without NaN."""
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
