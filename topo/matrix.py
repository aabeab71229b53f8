"""Matrices over devices in .csv and .npy files."""

import io
from math import prod
from types import MappingProxyType

import numpy as np

from jaxpipe.foreign_file import decode_text

_NPY_HEADERS = MappingProxyType(
    {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
)


def parse_matrix(content: bytes, *, suffix: str) -> np.ndarray:
    r"""Return the matrix in a file's content; in CSV, lines that begin with `#` are comments.

    >>> parse_matrix(b"# ms\n0, 11\n11, 0\n", suffix=".csv")
    array([[ 0., 11.],
           [11.,  0.]])

    Raises:
        ValueError: the content is neither CSV nor NPY, or has values that are not numbers.
    """
    if suffix == ".npy":
        return _parse_npy(content)
    if suffix == ".csv":
        try:
            return np.loadtxt(io.StringIO(decode_text(content)), delimiter=",", ndmin=2)
        except ValueError:  # its message would show what the file holds
            raise ValueError("cannot parse as CSV with rows of equally many numbers") from None
    raise ValueError(f"suffix {suffix!r} is not that of a matrix; give a .csv or .npy file")


def _parse_npy(content: bytes) -> np.ndarray:
    """Return the matrix; its header may claim any size, so that is compared with the file's."""
    file = io.BytesIO(content)
    try:
        read_header = _NPY_HEADERS[np.lib.format.read_magic(file)]
        shape, _, dtype = read_header(file)
    except (KeyError, ValueError, EOFError, TypeError) as error:
        raise ValueError(f"cannot parse as a matrix in NPY: {error}") from None
    num_bytes = prod(shape) * dtype.itemsize
    if dtype.hasobject or dtype.kind not in "fiu" or num_bytes != len(content) - file.tell():
        raise ValueError(
            f"cannot parse as a matrix in NPY: the header says {dtype} {shape}, {num_bytes:,} "
            f"bytes, and the file has {len(content) - file.tell():,}"
        )
    file.seek(0)
    # No pickle: it could run code.
    return np.asarray(np.load(file, allow_pickle=False), float)
