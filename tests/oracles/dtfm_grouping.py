"""The published formulas, written once more with nothing but loops and permutations."""

from collections.abc import Sequence
from itertools import pairwise, permutations

import numpy as np

GIGABYTES_OF_GRADIENTS = 0.65
GIGABYTES_OF_ACTIVATIONS = 2024 * 2048 * 2 * (1.25e5 / 2048) / 2**30


def published_cost(
    latency_ms: np.ndarray, bandwidth_gbps: np.ndarray, groups: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Return the cost of data parallelism, and of the pipeline once, in seconds."""
    share = GIGABYTES_OF_GRADIENTS / len(groups[0])
    data_parallel = max(
        sum(2 * (latency_ms[i, j] / 1000 + 8 * share / bandwidth_gbps[i, j]) for j in g if j != i)
        for g in groups
        for i in g
    )

    def hop(a: int, b: int) -> float:
        return latency_ms[a, b] / 1000 + 8 * GIGABYTES_OF_ACTIVATIONS / bandwidth_gbps[a, b]

    def cross(g: Sequence[int], h: Sequence[int]) -> float:
        return min(max(map(hop, g, order)) for order in permutations(h))

    pipeline = min(sum(cross(g, h) for g, h in pairwise(order)) for order in permutations(groups))
    return data_parallel, pipeline
