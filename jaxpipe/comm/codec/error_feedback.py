"""Error feedback: what a codec lost is added to what it encodes next, so that nothing is lost."""

import numpy as np
from jaxtyping import Float32, UInt8

from jaxpipe.comm.codec.codec import Codec


def encode_with_feedback(
    codec: Codec, values: Float32[np.ndarray, " size"], error: Float32[np.ndarray, " size"]
) -> tuple[UInt8[np.ndarray, " num_bytes"], Float32[np.ndarray, " size"]]:
    """Return the bytes of `values + error`, and what they lost: the `error` of the next call.

    Over many calls the decoded values sum to the true ones, but for the last error. Begin with
    zeros. Where an error would not be finite it is zero: an overflow is told once, not for ever.

    >>> from jaxpipe.comm.codec.top_k import TopKCodec
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
    with np.errstate(invalid="ignore"):  # infinity minus itself
        lost = np.subtract(wanted, codec.decode(encoded, size=values.size), out=wanted)
    lost[~np.isfinite(lost)] = 0.0
    return encoded, lost
