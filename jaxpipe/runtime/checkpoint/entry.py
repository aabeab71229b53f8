"""What a manifest says of one tensor, and how ranks hand these entries to each other."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from jaxpipe.errors import CheckpointError

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
