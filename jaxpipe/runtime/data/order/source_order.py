"""Which source each sample of a mixture is from, in closed form.

Samples are counted over all steps. In blocks of `BLOCK`, their numbers are permuted by the seed;
then the first source takes its share of all numbers, the second one its share of the others, and so
on::

    weights 2, 1, 1     number    0 1 2 3 4 5 6 7
                        source    2 0 1 0 2 0 1 0      before the permutation
                        index     0 0 0 1 1 2 1 3      of the sample in its source

The number of samples that a source has among the first n differs from its share of n by less than
the number of sources; after the permutation by less than a quarter of a block more. So a source is
read in order, without gaps, and nothing but the number of a sample is needed to resume. All samples
have the same number of tokens: shares of samples are shares of tokens.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from jaxpipe.runtime.data.order.permutation import mix, permute

BLOCK = 64
"""Samples that are permuted together: a replica, which has fixed rows, must read all sources."""

_UNIT = 1 << 24
"""Shares are multiples of its inverse; products with numbers of samples fit into 64 bits."""
_MOST_SAMPLES = 1 << 38

Numbers = Int64[np.ndarray, " rows"]


def shares_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the shares of sources in units of 2**-24, at least one each.

    >>> [share / 2**24 for share in shares_of((3.0, 1.0))]
    [0.75, 0.25]
    """
    total = sum(weights)
    return tuple(max(1, round(weight / total * _UNIT)) for weight in weights)


def assign(
    serials: Numbers, shares: Sequence[int], *, seed: int | None = None
) -> tuple[Numbers, Numbers]:
    """Return the source of each sample, and its index among the samples of that source.

    `serials` are the numbers of samples, counted over all steps. Without a seed they are not
    permuted.

    >>> sources, indices = assign(np.arange(8), (2, 1, 1))
    >>> sources.tolist(), indices.tolist()
    ([2, 0, 1, 0, 2, 0, 1, 0], [0, 0, 0, 1, 1, 2, 1, 3])
    """
    assert len(serials) == 0 or serials.max() < _MOST_SAMPLES, serials.max()
    left = serials if seed is None else _permuted(serials, seed)
    sources, indices = np.full_like(left, len(shares) - 1), left.copy()
    undecided: np.ndarray = np.ones(len(left), bool)
    rest = sum(shares)
    for source, share in enumerate(shares[:-1]):
        before, after = left * share // rest, (left + 1) * share // rest
        takes = undecided & (after > before)
        sources[takes], indices[takes] = source, before[takes]
        undecided &= ~takes
        left, rest = left - before, rest - share
    indices[undecided] = left[undecided]
    return sources, indices


def counts(num_samples: int, shares: Sequence[int]) -> list[int]:
    """Return how many of the first samples, not permuted, each source has.

    >>> counts(6, (2, 1, 1))
    [3, 1, 2]
    """
    left, rest, found = num_samples, sum(shares), []
    for share in shares:
        found.append(left * share // rest)
        left, rest = left - found[-1], rest - share
    return found


def seed_of_source(seed: int, source: int) -> int:
    """Return the seed of a source: sources of equal length must not be read in the same order."""
    mixed = mix(mix(np.array([seed], np.uint64)) + np.uint64(source))
    return int(mixed[0])


def _permuted(serials: Numbers, seed: int) -> Numbers:
    blocks = serials // BLOCK
    keys = mix(mix(np.full(len(serials), seed, np.uint64)) + blocks.astype(np.uint64))
    return blocks * BLOCK + permute(serials % BLOCK, size=BLOCK, keys=keys)
