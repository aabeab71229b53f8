"""The tensors of a safetensors object, each read by its range of bytes.

::

    8 bytes, the length of the header │ header, JSON │ elements ... │ elements ... │ ...
    └────────── one request ─────────────────────────┘              └─ a request ──┘

Ranges that lie side by side are one request, and requests run at the same time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from jaxpipe.foreign_file import parse_json
from jaxpipe.runtime.checkpoint.shard_header import LENGTH_BYTES, Described, header_of
from jaxpipe.runtime.storage.object_folder import ObjectFolder

_FIRST_BYTES = 2**16
_MOST_HEADER_BYTES = 10**8  # as safetensors has it
_REQUEST_BYTES = 2**26


class ObjectShard:
    """An open safetensors object: its header is read, and no tensor."""

    def __init__(self, folder: ObjectFolder, file: str) -> None:
        """Read the header.

        Raises:
            OSError: the object is missing, or the store does not answer.
            ValueError: the object is not as long as its header says, or no safetensors.
        """
        self._folder, self._file = folder, file
        size = folder.size(file)
        (first,) = folder.read_ranges(file, [(0, min(size, _FIRST_BYTES))])
        end = LENGTH_BYTES + int.from_bytes(first[:LENGTH_BYTES], "little")
        if end > min(size, _MOST_HEADER_BYTES):
            raise ValueError("its header is longer than the file")
        if end > len(first):
            first += folder.read_ranges(file, [(len(first), end)])[0]
        self.header = first[:end]
        """The bytes that precede the tensors."""
        described: dict[str, msgspec.Raw] = parse_json(
            first[LENGTH_BYTES:end], dict[str, msgspec.Raw]
        )
        described.pop("__metadata__", None)
        self._tensors = {
            name: parse_json(bytes(each), Described) for name, each in described.items()
        }
        if size != end + max((each.data_offsets[1] for each in self._tensors.values()), default=0):
            raise ValueError("it is not as long as its header says")

    def keys(self) -> Iterable[str]:
        """The names of the tensors."""
        return self._tensors.keys()

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield tensors by their names, in the order in which they lie in the object.

        Raises:
            OSError: the store does not answer.
            ValueError: a tensor is missing, or not as long as its shape says.
        """
        for name in names:
            if name not in self._tensors:
                raise ValueError(f"it lacks the tensor {name}")
        offsets = {name: self._tensors[name].data_offsets for name in names}
        for batch in _batches(requests(offsets), offsets):
            spans = [(offsets[each[0]][0], offsets[each[-1]][1]) for each in batch]
            start = len(self.header)
            contents = self._folder.read_ranges(
                self._file, [(start + begin, start + end) for begin, end in spans]
            )
            for together, (begin, _), content in zip(batch, spans, contents, strict=True):
                for name in together:
                    first, last = offsets[name]
                    data = memoryview(content)[first - begin : last - begin]
                    yield name, self._tensors[name].array(data)


def requests(offsets: Mapping[str, tuple[int, int]]) -> list[list[str]]:
    """Return names whose bytes lie side by side as one request, of at most 64 MiB or one name.

    >>> requests({"a": (0, 4), "b": (4, 9), "d": (12, 20)})
    [['a', 'b'], ['d']]
    """
    found: list[list[str]] = []
    begin = end = -1
    for name, (first, last) in sorted(offsets.items(), key=lambda each: each[1]):
        if first == end and last - begin <= _REQUEST_BYTES:
            found[-1].append(name)
        else:
            found.append([name])
            begin = first
        end = last
    return found


def _batches(
    found: Iterable[list[str]], offsets: Mapping[str, tuple[int, int]]
) -> Iterator[list[list[str]]]:
    """Yield the requests that run at the same time, of about 64 MiB."""
    batch: list[list[str]] = []
    size = 0
    for request in found:
        batch.append(request)
        size += offsets[request[-1]][1] - offsets[request[0]][0]
        if size >= _REQUEST_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def pieces_of(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Yield the header of a safetensors file with these tensors, then the bytes of each.

    Raises:
        KeyError: the format has no such dtype.
    """
    yield header_of((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
    for tensor in tensors.values():
        whole = tensor.reshape(-1).view(np.uint8).data
        for first in range(0, len(whole), _REQUEST_BYTES):
            yield whole[first : first + _REQUEST_BYTES]
