"""The protocol of what shortens floating-point arrays."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, UInt8

LARGEST_CODED_BYTES = 4


@runtime_checkable
class Codec(Protocol):
    """Turns float32 values into fewer bytes, and back; equal values give equal bytes.

    What is not finite stays so, if maybe with its neighbours: an overflow is never hidden.
    """

    def num_bytes(self, *, size: int) -> int:
        """Return how many bytes `size` values become."""
        ...

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        ...

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh memory that jax takes without a copy."""
        ...


def is_codable(dtype: np.dtype) -> bool:
    """Return whether codecs are for arrays of this dtype: float32 or a smaller floating one.

    >>> is_codable(np.dtype(jnp.bfloat16)), is_codable(np.dtype(np.float64))
    (True, False)
    """
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize <= LARGEST_CODED_BYTES
