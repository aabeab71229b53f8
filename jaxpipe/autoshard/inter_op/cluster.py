"""Cluster operators into layers: few bytes cross from one to the next, and none has much to do.

Operators stand in an order in which each reads what was made before it. Layers are runs of them;
that the bytes a layer reads from before it are few is what makes a good place to cut::

    G(k, r) = min over i of max(G(i, r - 1), C(i))    C(i): the bytes that cross before operator i

for all i from which operators i .. k - 1 have at most (1 + tolerance) of an even share of FLOP. Of
what is equally good, that with the least sum of squared FLOP is taken.

Source: Zheng et al., "Alpa", OSDI 2022, section 5.2, equation 6.
"""

from collections.abc import Sequence
from math import inf

from jaxpipe.autoshard.graph import Graph, Operator
from jaxpipe.errors import PlanError

_State = tuple[float, float, tuple[int, ...]]


def cluster_operators(
    flops: Sequence[float],
    crossing: Sequence[float],
    *,
    num_layers: int,
    tolerance: float = 0.5,
) -> tuple[int, ...]:
    """Return how many operators each layer has.

    `crossing[i]` are the bytes that operators i and later read of earlier ones; `crossing[0]` does
    not count. Cost: O(operators ** 2 * layers).

    >>> cluster_operators([1, 1, 1, 1], [0, 9, 2, 9], num_layers=2)
    (2, 2)

    Raises:
        PlanError: no layers are within the tolerance.
    """
    share = (1 + tolerance) * sum(flops) / num_layers
    best: list[_State] = [(0.0, 0.0, ())] + [(inf, inf, ())] * len(flops)
    for _ in range(num_layers):
        best = [_extended(end, best, flops, crossing, share) for end in range(len(flops) + 1)]
    worst, _, sizes = best[-1]
    if worst == inf:
        raise PlanError(
            f"layers have at most 1 + `tolerance` of an even share of FLOP: there are no "
            f"{num_layers} such layers of {len(flops)} operators with `tolerance` = {tolerance}; "
            "raise it, or ask for fewer layers"
        )
    return sizes


def crossing_bytes(graph: Graph) -> tuple[int, ...]:
    """Return for each operator the bytes of what it and later ones read of earlier operators."""
    last = {array: operator.index for operator in graph.operators for array in _read(operator)}
    change = [0] * (len(graph.operators) + 1)
    for operator in graph.operators:
        for result in operator.results:
            if last.get(result, -1) > operator.index:
                change[operator.index + 1] += graph.arrays[result].num_bytes
                change[last[result] + 1] -= graph.arrays[result].num_bytes
    crossing, total = [], 0
    for each in change[:-1]:
        total += each
        crossing.append(total)
    return tuple(crossing)


def _read(operator: Operator) -> list[int]:
    return [each for each in operator.operands if each is not None]


def _extended(
    end: int,
    before: Sequence[_State],
    flops: Sequence[float],
    crossing: Sequence[float],
    share: float,
) -> _State:
    """Return the best way to end one more layer before operator `end`."""
    best: _State = (inf, inf, ())
    work = 0.0
    for start in range(end - 1, -1, -1):
        work += flops[start]
        if work > share:
            break
        worst, squares, sizes = before[start]
        cut = crossing[start] if start else 0.0
        candidate = (max(worst, cut), squares + work**2, (*sizes, end - start))
        best = min(best, candidate, key=lambda state: state[:2])
    return best
