"""Matrices over devices in .csv and .npy files."""

import io

import numpy as np


def parse_matrix(content: bytes, *, suffix: str) -> np.ndarray:
    r"""Return the matrix in a file's content; in CSV, lines that begin with `#` are comments.

    >>> parse_matrix(b"# ms\n0, 11\n11, 0\n", suffix=".csv")
    array([[ 0., 11.],
           [11.,  0.]])

    Raises:
        ValueError: the content is neither CSV nor NPY, or has values that are not numbers.
    """
    if suffix == ".npy":
        try:
            # No pickle: it could run code.
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False), float)
        except (EOFError, OSError, TypeError) as error:
            raise ValueError(f"the file is not a matrix in NPY: {error}") from None
    if suffix == ".csv":
        return np.loadtxt(io.StringIO(content.decode()), delimiter=",", ndmin=2)
    raise ValueError(f"a matrix must be a .csv or .npy file, not {suffix!r}")
