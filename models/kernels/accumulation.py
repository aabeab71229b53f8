"""The format of statistics, softmax, logits and losses: float32, or float64 of float64 arrays."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def accumulation_dtype(dtype: Any) -> np.dtype:
    """Return the format in which values of this format are summed: float32 at least.

    A run computes in float32 at most; `jaxpipe verify` computes in float64, where an error of the
    program is not hidden by rounding.

    >>> [str(accumulation_dtype(name)) for name in ("bfloat16", "float32", "float64")]
    ['float32', 'float32', 'float64']
    """
    return np.dtype(jnp.promote_types(dtype, jnp.float32))
