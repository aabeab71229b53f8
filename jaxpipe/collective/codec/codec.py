"""The protocol of codecs, and error feedback for any of them."""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, UInt8


@runtime_checkable
class Codec(Protocol):
    """Encodes float32 values in fewer bytes, and decodes them; equal values give equal bytes.

    A value that is not finite decodes to one that is not (its neighbours may too): a codec never
    hides an overflow.
    """

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        ...

    def encode(self, values: Float32[np.ndarray, " size"]) -> UInt8[np.ndarray, " num_bytes"]:
        """Return the bytes, in fresh memory."""
        ...

    def decode(
        self, encoded: UInt8[np.ndarray, " num_bytes"], *, size: int
    ) -> Float32[np.ndarray, " size"]:
        """Return the values, in fresh aligned memory that jax takes without a copy."""
        ...


def encode_with_feedback(
    codec: Codec, values: Float32[np.ndarray, " size"], error: Float32[np.ndarray, " size"]
) -> tuple[UInt8[np.ndarray, " num_bytes"], Float32[np.ndarray, " size"]]:
    """Return the encoded `values + error`, and the error that this leaves for the next call.

    Over many calls the decoded values sum to the true ones, except for the last error. Start with
    zeros. An error that would not be finite is set to zero, so that an overflow affects one call.

    >>> from jaxpipe.collective.codec.top_k import TopKCodec
    >>> codec, error = TopKCodec(fraction=0.5), np.zeros(2, np.float32)
    >>> for _ in range(3):
    ...     encoded, error = encode_with_feedback(codec, np.array([2, 1], np.float32), error)
    ...     print(codec.decode(encoded, size=2), error)
    [2. 0.] [0. 1.]
    [0. 2.] [2. 0.]
    [4. 0.] [0. 1.]

    Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Stich et al.,
    "Sparsified SGD with Memory", NeurIPS 2018, algorithm 1.
    """
    wanted = values + error
    encoded = codec.encode(wanted)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        lost = np.subtract(wanted, codec.decode(encoded, size=values.size), out=wanted)
    lost[~np.isfinite(lost)] = 0.0
    return encoded, lost
