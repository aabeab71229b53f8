"""The cheapest open path through all groups: the order of the stages of a pipeline."""

import numpy as np

LARGEST_EXACT_PATH = 16
"""The largest number of groups for Held-Karp: 2 ** 16 subsets take 0.1 s and 8 MB."""

_LARGEST_SEGMENT = 3
_NUM_STARTS = 32
_TOLERANCE = 1e-12


def path_cost(hops: np.ndarray, order: np.ndarray) -> float:
    """Return the sum of the hops of a path."""
    return float(hops[order[:-1], order[1:]].sum())


def cheapest_path(hops: np.ndarray, *, largest_exact: int = LARGEST_EXACT_PATH) -> np.ndarray:
    """Return the order that visits every group once with the smallest sum of hops.

    `hops[g, h]` leads from `g` to `h`; it may be asymmetric, its diagonal is ignored. Exact for up
    to `largest_exact` groups. For more, the nearest unvisited group follows from up to 32 starts,
    and the best of these paths is improved by reversals and by moves of up to three groups, until
    neither helps. Of a path and its reverse, if they cost the same, the one is returned that
    starts with the smaller number.

    >>> cheapest_path(np.array([[0, 9, 1], [9, 0, 2], [1, 2, 0]])).tolist()
    [0, 2, 1]

    Source: Held and Karp, "A dynamic programming approach to sequencing problems", 1962, without
    the way back; Or, "Traveling salesman-type combinatorial problems", 1976.
    """
    if len(hops) <= largest_exact:
        order = _held_karp(hops)
    else:
        chosen = np.linspace(0, len(hops) - 1, min(len(hops), _NUM_STARTS)).astype(int)
        starts = [_nearest_neighbours(hops, int(start)) for start in chosen]
        order = _improve(hops, min(starts, key=lambda order: path_cost(hops, order)))
    back = order[::-1]
    # Symmetric links give two equal paths; a fixed choice keeps results the same in every run.
    as_cheap = path_cost(hops, back) <= path_cost(hops, order) + _TOLERANCE
    return back if as_cheap and back[0] < order[0] else order


def _held_karp(hops: np.ndarray) -> np.ndarray:
    """Extend the best path through every set, which ends in each of its members, by one group."""
    size = len(hops)
    costs = np.full((1 << size, size), np.inf)
    costs[1 << np.arange(size), np.arange(size)] = 0.0
    sets = np.arange(1 << size)
    counts = np.array([int(s).bit_count() for s in sets])
    # By size: all paths that a set extends are known. `inf` rules out a last group outside the set.
    for count in range(2, size + 1):
        layer = sets[counts == count]
        for last in range(size):
            ending = layer[layer >> last & 1 == 1]
            costs[ending, last] = (costs[ending ^ (1 << last)] + hops[:, last]).min(axis=1)
    visited, path = (1 << size) - 1, [int(costs[-1].argmin())]
    while len(path) < size:
        visited ^= 1 << path[-1]
        path.append(int((costs[visited] + hops[:, path[-1]]).argmin()))
    return np.array(path[::-1])


def _nearest_neighbours(hops: np.ndarray, start: int) -> np.ndarray:
    left = hops.astype(float)
    path = [start]
    for _ in range(len(hops) - 1):
        left[:, path[-1]] = np.inf
        path.append(int(left[path[-1]].argmin()))
    return np.array(path)


def _improve(hops: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Apply the best reversal or move of a stretch until none makes the path cheaper.

    A dummy group with hops of 0, numbered last, is at both ends of the path, so that the ends need
    no special cases.
    """
    padded = np.pad(hops.astype(float), (0, 1))
    path = np.concatenate(([len(hops)], order, [len(hops)]))
    while True:
        candidates = [_best_reversal(padded, path)]
        candidates += [
            _best_move(padded, path, length=length)
            for length in range(1, min(_LARGEST_SEGMENT, len(order) - 1) + 1)
        ]
        best = min(candidates, key=lambda candidate: path_cost(padded, candidate))
        # Without the tolerance, two paths of equal cost could replace each other forever.
        if path_cost(padded, best) > path_cost(padded, path) - _TOLERANCE:
            return path[1:-1]
        path = best


def _best_reversal(hops: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Return the path with the stretch `i .. j` reversed for which it becomes cheapest."""
    forth = np.concatenate(([0.0], hops[path[:-1], path[1:]].cumsum()))
    back = np.concatenate(([0.0], hops[path[1:], path[:-1]].cumsum()))
    i, j = np.triu_indices(len(path) - 2, 1)
    # The dummy group at both ends is never reversed.
    i, j = i + 1, j + 1
    change = (back[j] - back[i] + hops[path[i - 1], path[j]] + hops[path[i], path[j + 1]]) - (
        forth[j] - forth[i] + hops[path[i - 1], path[i]] + hops[path[j], path[j + 1]]
    )
    best = int(change.argmin())
    start, stop = int(i[best]), int(j[best]) + 1
    return np.concatenate((path[:start], path[start:stop][::-1], path[stop:]))


def _best_move(hops: np.ndarray, path: np.ndarray, *, length: int) -> np.ndarray:
    """Return the path with `length` consecutive groups moved elsewhere where it is cheapest."""
    first = np.arange(1, len(path) - length)
    last, gap = first + length - 1, np.arange(len(path) - 1)
    before, after = path[first - 1], path[last + 1]
    saved = hops[before, path[first]] + hops[path[last], after] - hops[before, after]
    spent = (
        hops[np.ix_(path[:-1], path[first])].T
        + hops[np.ix_(path[last], path[1:])]
        - hops[path[:-1], path[1:]]
    )
    inside = (gap >= first[:, None] - 1) & (gap <= last[:, None])  # moves into or next to itself
    change = np.where(inside, np.inf, spent - saved[:, None])
    start, into = (int(index) for index in np.unravel_index(change.argmin(), change.shape))
    stretch = path[first[start] : last[start] + 1]
    rest = np.delete(path, np.s_[first[start] : last[start] + 1])
    # Gaps behind the stretch have moved by its length.
    place = into + 1 if into < first[start] else into + 1 - length
    return np.insert(rest, place, stretch)
