"""How rotary positions reach beyond the sequences of pretraining; without jax."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum


class RopeScaling(StrEnum):
    """How rotary positions reach beyond the sequences of pretraining."""

    NONE = "none"
    """Frequencies of the base alone."""
    LINEAR = "linear"
    """All frequencies divided by `rope_factor` (position interpolation)."""
    NTK = "ntk"
    """A larger base: the lowest frequency divided by `rope_factor`, the highest as it is."""
    LLAMA3 = "llama3"
    """Low frequencies divided by `rope_factor`, high ones as they are, and a ramp between them."""
    YARN = "yarn"
    """As `llama3`, with a ramp over the numbers of the frequencies, and larger scores."""
    DYNAMIC = "dynamic"
    """As `none` up to `rope_sequence`, and not computed for longer sequences."""
    LONGROPE = "longrope"
    """Each frequency divided by its own number: of `rope_short` in texts up to `rope_sequence`
    tokens, of `rope_long` in longer ones; and larger scores in both."""


def check_divisors(
    scaling: RopeScaling,
    divisors: Mapping[str, Sequence[float]],
    *,
    num_pairs: int,
    sequence: int,
) -> None:
    """Check the divisors of frequencies by the names of their fields, and `rope_sequence`.

    Raises:
        ValueError: LongRoPE has not one divisor above 0 for each of the pairs, or a sequence
            without a logarithm to divide by; or another scaling has divisors.
    """
    is_long = scaling is RopeScaling.LONGROPE
    count = num_pairs if is_long else 0
    for name, values in divisors.items():
        if len(values) != count or not all(0 < value < math.inf for value in values):
            raise ValueError(
                f"`{name}` must have {count} numbers above 0 with `rope_scaling` "
                f"{scaling.value!r}, one for each pair that is turned, not {values!r:.80}"
            )
    if is_long and sequence < 2:
        raise ValueError(
            f"`rope_sequence` must be at least 2 with `rope_scaling` {scaling.value!r}, not "
            f"{sequence}"
        )
