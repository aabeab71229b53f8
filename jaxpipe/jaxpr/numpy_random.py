"""Random numbers of JAX by NumPy: Threefry, whose keys are numbers of 64 bits here.

Bits are those of `jax_threefry_partitionable`: each depends on the key and its own position alone.
Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011; `jax._src.prng`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import jax
import numpy as np

from jaxpipe.jaxpr.flatten import Equation

_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY: Final = np.uint32(0x1BD11BDA)
_PARTITIONABLE: Final = "jax_threefry_partitionable"
_HALF: Final = np.uint64(32)


def is_threefry(dtype: Any) -> bool:
    """Return whether a dtype is that of keys of Threefry whose bits can be computed here."""
    if isinstance(dtype, np.dtype):
        return False
    return str(dtype) == "key<fry>" and bool(getattr(jax.config, _PARTITIONABLE))


def threefry(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return 64 random bits for each count of 64 bits; keys and counts broadcast.

    >>> hex(int(threefry(np.array(0), np.array(0))))
    '0x6b20015999ba4efe'
    """
    key = _halves(keys)
    words = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = _halves(counts)
    x, y = x + words[0], y + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
            y = x ^ y
        x = x + words[(group + 1) % 3]
        y = y + words[(group + 2) % 3] + np.uint32(group + 1)
    bits = (x.astype(np.uint64) << _HALF) | y
    return bits.reshape(np.broadcast_shapes(np.shape(keys), np.shape(counts)))


def _halves(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Of at least one dimension: NumPy warns of overflow in scalars alone.
    numbers = np.atleast_1d(np.asarray(numbers, np.uint64))
    return (numbers >> _HALF).astype(np.uint32), numbers.astype(np.uint32)


def _counts(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.uint64).reshape(shape)


def _over(keys: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return 64 random bits for each position of a shape, of each key."""
    keys = np.asarray(keys)
    return threefry(keys.reshape(keys.shape + (1,) * len(shape)), _counts(shape))


def _bits(equation: Equation) -> Callable[..., np.ndarray]:
    shape, width = tuple(equation.params["shape"]), equation.params["bit_width"]

    def rule(keys: np.ndarray) -> np.ndarray:
        bits = _over(keys, shape)
        if width == 64:
            return bits
        return ((bits >> _HALF) ^ bits).astype(f"uint{width}")

    return rule


def _split(equation: Equation) -> Callable[..., np.ndarray]:
    shape = tuple(equation.params["shape"])
    return lambda keys: _over(keys, shape)


def _seed(equation: Equation) -> Callable[..., np.ndarray]:
    width = 8 * equation.operands[0].aval.dtype.itemsize
    return lambda seeds: np.asarray(seeds).astype(f"uint{width}").astype(np.uint64)


def _fold_in(_: Equation) -> Callable[..., np.ndarray]:
    return lambda keys, number: threefry(keys, np.asarray(number).astype(np.uint32))


RANDOM_RULES: Final[Mapping[str, Callable[[Equation], Callable[..., np.ndarray]]]] = (
    MappingProxyType(
        {
            "random_bits": _bits,
            "random_fold_in": _fold_in,
            "random_seed": _seed,
            "random_split": _split,
        }
    )
)
"""Makes the rule of an equation, by its primitive."""
