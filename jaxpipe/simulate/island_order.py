"""In which order a sum visits islands: along the path whose slowest link is fastest."""

from itertools import combinations

import numpy as np


def fastest_path(cost: np.ndarray) -> tuple[int, ...]:
    """Return an order of all islands whose costliest step is as cheap as can be.

    `cost[a, b]` is what a step between islands a and b costs, the same both ways. Among such paths
    one with the least sum that the search meets is taken. Exact in the costliest step.

    >>> fastest_path(np.array([[0, 9, 1], [9, 0, 2], [1, 2, 0]]))
    (0, 2, 1)

    Cost: 2^n n^2 for n islands.

    Source: Held and Karp, "A dynamic programming approach to sequencing problems", 1962, with the
    maximum in the place of the sum.
    """
    n = len(cost)
    best: dict[tuple[int, int], tuple[float, float, tuple[int, ...]]] = {
        (1 << i, i): (0.0, 0.0, (i,)) for i in range(n)
    }
    for size in range(1, n):
        for members in combinations(range(n), size):
            visited = sum(1 << i for i in members)
            for last in members:
                worst, total, path = best[visited, last]
                for after in range(n):
                    if visited & 1 << after:
                        continue
                    step = float(cost[last, after])
                    found = (max(worst, step), total + step, (*path, after))
                    key = (visited | 1 << after, after)
                    if key not in best or found < best[key]:
                        best[key] = found
    full = (1 << n) - 1
    return min(best[full, last] for last in range(n))[2]
