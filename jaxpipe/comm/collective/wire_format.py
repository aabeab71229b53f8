"""What travels in an all-reduce: the dtype of messages, the codec of far ones, their size.

Sums are made in float32 at least, whatever travels: a float32 total and bfloat16 wires lose the
precision of one rounding for each message, not of one for each addition.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxpipe.comm.codec.codec import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """How the values of an all-reduce travel.

    `dtype`: that of the messages, if the array is a floating one; None for its own. `far`: a codec
    for what the members of the whole tree exchange, in a hierarchical all-reduce; None for none.
    `chunk_bytes`: how many bytes one message has at most; the chunks of an array follow each other.
    """

    dtype: np.dtype | None = None
    far: Codec | None = None
    chunk_bytes: int = 2**20

    def __post_init__(self):
        assert self.chunk_bytes > 0, self.chunk_bytes

    def dtype_of(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype in which an array of this dtype travels.

        >>> WireFormat(dtype=np.dtype(np.float16)).dtype_of(np.dtype(np.float32))
        dtype('float16')
        """
        return self.dtype if self.dtype is not None and is_floating(dtype) else dtype


def is_floating(dtype: np.dtype) -> bool:
    """Return whether values of this dtype may be rounded.

    >>> is_floating(np.dtype(jnp.bfloat16)), is_floating(np.dtype(np.int8))
    (True, False)
    """
    return bool(jnp.issubdtype(dtype, jnp.floating))


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which arrays are summed: float32 at least for floating ones.

    >>> [str(sum_dtype(np.dtype(name))) for name in ("float16", "float64", "int8")]
    ['float32', 'float64', 'int8']
    """
    is_small = is_floating(dtype) and dtype.itemsize < 4
    return np.dtype(np.float32) if is_small else dtype
