"""Cluster a chain of operators into layers: little to send between them, none much too heavy.

::

    operators   o ─8─ o ─1─ o ─9─ o ─2─ o ─7─ o       bytes that a cut would send
    layers      └──────┘ └─────────┘ └────────┘       three layers, cut where 1 and 2 are
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from jaxpipe.errors import PlanError


def cluster_layers(
    flops: Sequence[float],
    cut_bytes: Sequence[float],
    *,
    num_layers: int,
    imbalance: float = 0.2,
) -> tuple[range, ...]:
    """Return the operators of each layer, such that the costliest cut is as cheap as can be.

    `flops` are those of each operator, `cut_bytes[i]` what is sent if a layer ends after operator
    i. No layer has more than 1 + `imbalance` times its even share of the FLOPs, unless it is a
    single operator. Of equally costly cuts the ones with the most even layers are taken.

    Cost: O(operators ** 2 x layers).

    >>> cluster_layers([1, 1, 1, 1, 1, 1], [8, 1, 9, 2, 7], num_layers=3)
    (range(0, 2), range(2, 4), range(4, 6))

    Raises:
        PlanError: there are fewer operators than layers, or no layers are as even as that.

    Source: Zheng et al., "Alpa", OSDI 2022, section 5.2, equation 6.
    """
    size = len(flops)
    if not 1 <= num_layers <= size:
        raise PlanError(
            f"each layer has an operator: `num_layers` is {num_layers} for {size} operators; make "
            f"it 1 to {size}"
        )
    before = np.concatenate(([0.0], np.cumsum(flops, dtype=float)))
    share = before[-1] / num_layers
    sent = [0.0, *cut_bytes, 0.0]
    # best[n] is the costliest cut, and the unevenness, of the first n operators in so many layers
    best: list[tuple[float, float]] = [(0.0, 0.0)] + [(inf, inf)] * size
    froms: list[list[int]] = []
    for _ in range(num_layers):
        longer, came = [(inf, inf)] * (size + 1), [0] * (size + 1)
        for stop in range(1, size + 1):
            for start in range(stop):
                held = before[stop] - before[start]
                if stop - start > 1 and held > (1 + imbalance) * share * (1 + 1e-12):
                    continue
                costliest, uneven = best[start]
                value = (max(costliest, sent[start]), uneven + (held - share) ** 2)
                if value < longer[stop]:
                    longer[stop], came[stop] = value, start
        best = longer
        froms.append(came)
    if best[size][0] == inf:
        raise PlanError(
            f"layers are about as heavy: `imbalance` is {imbalance}, and no {num_layers} layers of "
            "these operators are within it; make it larger"
        )
    edges = [size]
    for came in reversed(froms):
        edges.append(came[edges[-1]])
    return tuple(range(a, b) for a, b in zip(edges[:0:-1], edges[-2::-1], strict=True))
