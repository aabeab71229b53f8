"""Bottleneck matching: match two groups one to one such that the slowest pair is fastest.

Two exact methods: a threshold search over Hopcroft-Karp, which returns the matching, and a dynamic
program over subsets, which evaluates many small matchings at once, for searches.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb

import numpy as np

LARGEST_SUBSET_SIZE = 10
"""Up to this size of group the subsets, 2 ** size of them, are fewer than Hopcroft-Karp's steps."""

_CHUNK = 2048
"""Matchings that are valued together: their table stays in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Row `i` is joined to column `columns[i]`; `value` is the largest weight among the joins."""

    value: float
    columns: tuple[int, ...]


def bottleneck_matching(weights: np.ndarray) -> Matching:
    """Return a perfect matching of rows x columns whose largest weight is the smallest possible.

    >>> bottleneck_matching(np.array([[1.0, 2.0], [1.0, 5.0]]))
    Matching(value=2.0, columns=(1, 0))

    Cost: O(log n) runs of Hopcroft-Karp, each O(n ** 2.5).

    Source: Burkard, Dell'Amico, Martello, "Assignment Problems", SIAM 2009, section 6.2
    (threshold algorithm).
    """
    # The bottleneck is one of the weights, so that a search over their ranks is exact.
    values = np.unique(weights)
    low, high = int(np.searchsorted(values, reach(weights))), len(values) - 1
    columns = _match(weights <= values[low])
    if columns is not None:
        return Matching(value=float(values[low]), columns=columns)
    columns = _match(weights <= values[high])
    while low + 1 < high:  # no matching at `low`, one at `high`
        middle = (low + high) // 2
        found = _match(weights <= values[middle])
        if found is None:
            low = middle
        else:
            high, columns = middle, found
    assert columns is not None, weights
    return Matching(value=float(values[high]), columns=columns)


def reach(weights: np.ndarray) -> float:
    """Return a bound below every perfect matching: each row and each column needs some join.

    >>> reach(np.array([[1.0, 2.0], [1.0, 5.0]]))
    2.0
    """
    return max(float(weights.min(axis=1).max()), float(weights.min(axis=0).max()))


def bottleneck_values(weights: np.ndarray) -> np.ndarray:
    """Return the bottleneck of each of many matchings, batch x rows x columns, of any ordered type.

    >>> bottleneck_values(np.array([[[1, 2], [1, 5]], [[3, 3], [3, 3]]]))
    array([2, 3])

    Cost: rows * 2 ** rows comparisons each up to `LARGEST_SUBSET_SIZE` rows.
    """
    batch, size, _ = weights.shape
    if size > LARGEST_SUBSET_SIZE:
        found = [bottleneck_matching(each).value for each in weights]
        return np.array(found, dtype=weights.dtype)
    chunks = [_subset_values(weights[i : i + _CHUNK]) for i in range(0, batch, _CHUNK)]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=weights.dtype)


def _match(allowed: np.ndarray) -> tuple[int, ...] | None:
    """Return the column of each row in a perfect matching of allowed joins, if there is one."""
    from scipy.sparse import csr_array  # slow to import, and ranks have no use for it
    from scipy.sparse.csgraph import maximum_bipartite_matching

    columns = maximum_bipartite_matching(csr_array(allowed), perm_type="column")
    return None if (columns < 0).any() else tuple(columns.tolist())


@cache
def _layers(size: int) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]:
    """Return for p = 1 .. size: the sets of p columns, each set less one column, that column.

    A set is the sum of the bits of its columns; shapes are sets, sets x p and sets x p.
    """
    layers = []
    for p in range(1, size + 1):
        columns = np.array(list(combinations(range(size), p))).reshape(comb(size, p), p)
        sets = (1 << columns).sum(axis=1)
        layers.append((sets, sets[:, None] ^ (1 << columns), columns))
    return tuple(layers)


def _subset_values(weights: np.ndarray) -> np.ndarray:
    """Match the first p rows with every set of p columns, for p = 1, 2, and so on."""
    size = weights.shape[1]
    # The batch is the last axis: NumPy then works on long contiguous runs.
    rows = np.ascontiguousarray(weights.transpose(1, 2, 0))
    best = np.empty((1 << size, len(weights)), dtype=weights.dtype)
    best[0] = weights.min()  # neutral for the maximum
    for row, (sets, without, columns) in zip(rows, _layers(size), strict=True):
        joined = best[without]
        np.maximum(joined, row[columns], out=joined)
        best[sets] = joined.min(axis=1)
    return best[-1]
