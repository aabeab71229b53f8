"""The header of a safetensors file: what tensors lie behind it, and where.

::

    8 bytes, the length of the list │ the list, JSON │ the elements of each tensor, in C order
    └──────────────────── header ───────────────────┘

Source of the format: the documentation of safetensors, "Format".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

import ml_dtypes
import msgspec
import numpy as np

LENGTH_BYTES = 8
"""Of the length of the list, with which a file begins."""
_NOT_NEGATIVE = Annotated[int, msgspec.Meta(ge=0)]

DTYPES: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"F{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)},
    **{f"I{8 * n}": np.dtype(f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"U{8 * n}": np.dtype(f"<u{n}") for n in (1, 2, 4, 8)},
}
"""The dtype of each name in a header."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor in a header: `data_offsets` are those of its bytes behind the header."""

    dtype: str
    shape: tuple[_NOT_NEGATIVE, ...]
    data_offsets: tuple[_NOT_NEGATIVE, _NOT_NEGATIVE]

    def array(self, data: memoryview) -> np.ndarray:
        """Return the tensor with these bytes; it cannot be written to.

        Raises:
            ValueError: the dtype is unknown, or there are not as many bytes.
        """
        if self.dtype not in DTYPES:
            raise ValueError(f"it has the unknown dtype {self.dtype!r:.40}")
        return np.frombuffer(data, DTYPES[self.dtype]).reshape(self.shape)


def header_of(tensors: Iterable[tuple[str, np.dtype, tuple[int, ...]]]) -> bytes:
    """Return the header of a file with tensors of these names, dtypes and shapes, in this order.

    >>> header_of([("a", np.dtype(np.float32), (2, 3))])[8:]
    b'{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}       '

    Raises:
        KeyError: the format has no such dtype.
    """
    described: dict[str, Described] = {}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + prod(shape) * dtype.itemsize
        described[name] = Described(_NAMES[dtype], shape, (begin, end))
    text = msgspec.json.encode(described)
    text += b" " * (-len(text) % LENGTH_BYTES)  # the first element is aligned, for mapped files
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
