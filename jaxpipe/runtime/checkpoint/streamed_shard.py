"""A safetensors file that is written and verified piece by piece: no tensor is held as a whole.

safetensors writes arrays that are in memory. An embedding of 128,000 tokens has 2 GB in float32, so
an import writes the format itself::

    8 bytes, the length of the header │ header, JSON │ the elements of each tensor, in C order

Source of the format: the documentation of safetensors, "Format".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import xxhash

from jaxpipe.runtime.checkpoint.manifest import TensorEntry, corrupt
from jaxpipe.runtime.checkpoint.shard import check_shard, unwritable
from jaxpipe.runtime.storage.atomic_write import sync_file, sync_folder

_ALIGNMENT = 8
"""Of the first element, for readers that map the file."""
_PIECE_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class StreamedTensor:
    """A float32 tensor in pieces, which `pieces` makes in C order, each time that it is called.

    >>> tensor = StreamedTensor.of("head.norm.scale", np.ones(3, np.float32))
    >>> tensor.num_bytes, tensor.array()
    (12, array([1., 1., 1.], dtype=float32))
    """

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[np.ndarray]]

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> "StreamedTensor":
        """Return an array as a tensor of one piece."""
        return cls(name, array.shape, lambda: (np.asarray(array, np.float32, order="C"),))

    @property
    def num_bytes(self) -> int:
        """The size of all pieces."""
        return 4 * prod(self.shape)

    def array(self) -> np.ndarray:
        """Return the whole tensor."""
        whole = np.concatenate([piece.reshape(-1) for piece in self.pieces()])
        return whole.reshape(self.shape)


def write_streamed_shard(
    folder: Path, name: str, tensors: Sequence[StreamedTensor]
) -> tuple[TensorEntry, ...]:
    """Write `<name>.safetensors` as `write_shard` does, and read it back, a piece at a time.

    Raises:
        CheckpointError: the disk is full, or the tensors that are read back differ from those
            written.
    """
    path = folder / f"{name}.safetensors"
    header = _header(tensors)
    try:
        with path.open("xb") as file:
            file.write(header)
            entries = tuple(_write(file, tensor) for tensor in tensors)
        sync_file(path)
        sync_folder(folder)
        _verify(path, header, entries)
    except OSError as error:
        raise unwritable(path, error) from None
    check_shard(folder, path.name, [entry.name for entry in entries])
    return entries


def _header(tensors: Iterable[StreamedTensor]) -> bytes:
    described: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.num_bytes
        described[tensor.name] = {
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": (begin, end),
        }
    text = msgspec.json.encode(described)
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_ALIGNMENT, "little") + text


def _write(file: BinaryIO, tensor: StreamedTensor) -> TensorEntry:
    hasher, num_bytes = xxhash.xxh3_128(), 0
    for piece in tensor.pieces():
        assert piece.dtype == np.float32, (tensor.name, piece.dtype)
        assert piece.flags.c_contiguous, tensor.name
        data = piece.reshape(-1).astype("<f4", copy=False).view(np.uint8).data
        hasher.update(data)
        file.write(data)
        num_bytes += len(data)
    assert num_bytes == tensor.num_bytes, (tensor.name, num_bytes, tensor.num_bytes)
    return TensorEntry(
        name=tensor.name,
        file=Path(file.name).name,
        dtype="float32",
        shape=tensor.shape,
        checksum=hasher.hexdigest(),
    )


def _verify(path: Path, header: bytes, entries: Iterable[TensorEntry]) -> None:
    """Read a file from the device, and compare all of it with what was written.

    Raises:
        CheckpointError: it differs.
    """
    with path.open("rb") as file:
        if file.read(len(header)) != header:
            raise corrupt(path, "its header differs from the one that was written")
        for entry in entries:
            hasher = xxhash.xxh3_128()
            for data in _read(file, num_bytes=4 * prod(entry.shape)):
                hasher.update(data)
            if hasher.hexdigest() != entry.checksum:
                raise corrupt(path, f"the tensor {entry.name} does not match its checksum")


def _read(file: BinaryIO, *, num_bytes: int) -> Iterator[bytes]:
    while num_bytes > 0 and (data := file.read(min(num_bytes, _PIECE_BYTES))):
        yield data
        num_bytes -= len(data)
