"""A tensor of another program, checked before it becomes a parameter."""

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np

from jaxpipe.errors import CheckpointError, ConfigError


def checked(tensor: np.ndarray, shape: tuple[int, ...], *, name: str) -> np.ndarray:
    """Return a tensor in float32.

    Raises:
        CheckpointError: it is of another shape, or has values that are not finite in float32.
    """
    check_shape(tensor.shape, shape, name=name)
    return finite(tensor, name=name)


def check_shape(actual: tuple[int, ...], shape: tuple[int, ...], *, name: str) -> None:
    """Check the shape of a tensor.

    Raises:
        CheckpointError: it is another one.
    """
    if actual != shape:
        raise CheckpointError(
            f"`{name}` has shape {list(actual)}, and must have {list(shape)} for its "
            "`config.json`; give the files that belong together"
        )


def finite(tensor: np.ndarray, *, name: str) -> np.ndarray:
    """Return a tensor, or a part of it, in float32.

    Raises:
        CheckpointError: it has values that are not finite in float32, or no fractions: whole
            numbers are weights of a quantized model, without their scales.
    """
    if tensor.dtype.kind in "biu":
        raise CheckpointError(
            f"`{name}` has numbers in {tensor.dtype}, as quantized models have, and must have them "
            "in float32, bfloat16 or float16; give the model that is not quantized"
        )
    with np.errstate(over="ignore"):  # of float64: found below
        values = tensor.astype(np.float32)
    if num_wrong := values.size - int(np.isfinite(values).sum()):
        raise CheckpointError(
            f"`{name}` has {num_wrong:,} weights of {values.size:,} that are NaN or infinite in "
            "float32; give a model that was saved intact"
        )
    return values


def in_format(tensor: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Return a tensor in another format, rounded to nearest.

    Raises:
        ConfigError: a finite weight is infinite in it.
    """
    with np.errstate(over="ignore"):  # found below
        values = np.ascontiguousarray(tensor, np.dtype(dtype))
    if dtype != "float32" and not np.array_equal(np.isfinite(values), np.isfinite(tensor)):
        raise ConfigError(
            f"`--dtype` {dtype} must hold all weights, and `{name}` has some of "
            f"{np.abs(tensor).max():.3g}, which are infinite in it; give bfloat16 or float32"
        )
    return values
