"""The table of contents of a checkpoint, which is one only when this file is in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.runtime.checkpoint.corruption import corrupt
from jaxpipe.runtime.checkpoint.durable import write_durably
from jaxpipe.runtime.checkpoint.entry import TensorEntry
from jaxpipe.runtime.checkpoint.sealed import seal, unseal

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
