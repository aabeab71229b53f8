"""Aligned host memory, which jax takes without a copy."""

import math

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT_BYTES = 64


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised array in fresh memory that starts at a multiple of 64 bytes.

    >>> aligned_empty((3, 5), "float32").ctypes.data % ALIGNMENT_BYTES
    0
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES  # bytes to the next multiple
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
