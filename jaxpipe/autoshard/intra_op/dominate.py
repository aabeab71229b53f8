"""Leave out choices that another one beats whatever the neighbours choose.

Choice k of a node is dominated by k' if k' takes no longer at the node plus, over its edges, the
most that k' can lose against k; has no charge that k has not; and needs no more memory::

    seconds[k'] + sum over edges of max over j of (edge[k', j] - edge[k, j]) <= seconds[k]

Some optimum has no dominated choice, so leaving them out changes no answer. Fewer choices of a node
leave its neighbours less to lose, so it is done again until nothing changes. Layers repeat: nodes
whose numbers are all alike are looked at once.

Source: the dominance of preprocessing in weighted constraint satisfaction (dead-end elimination,
Desmet et al. 1992).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from jaxpipe.autoshard.intra_op.problem import Edge, Kept, Problem


def undominated(problem: Problem, *, num_rounds: int = 4) -> Kept:
    """Return the choices of each node that no other dominates.

    >>> from jaxpipe.autoshard.intra_op.problem import Node
    >>> node = Node(seconds=np.array([2.0, 1.0]), memory=np.zeros((1, 2)))
    >>> undominated(Problem(nodes=(node,), edges=()))
    (array([1]),)
    """
    touching: dict[int, list[tuple[Edge, bool]]] = defaultdict(list)
    for edge in problem.edges:
        touching[edge.source].append((edge, True))
        touching[edge.target].append((edge, False))
    kept = [np.arange(len(node)) for node in problem.nodes]
    changed = set(range(len(problem.nodes)))
    for _ in range(num_rounds):
        known: dict[bytes, np.ndarray] = {}
        again: set[int] = set()
        for number in sorted(changed):
            best = _best(problem, number, touching[number], kept, known)
            if len(best) < len(kept[number]):
                kept[number] = kept[number][best]
                again |= {e.target if is_source else e.source for e, is_source in touching[number]}
        changed = again
    return tuple(kept)


def _best(
    problem: Problem,
    number: int,
    touching: list[tuple[Edge, bool]],
    kept: list[np.ndarray],
    known: dict[bytes, np.ndarray],
) -> np.ndarray:
    """Return which of the choices kept of a node are not dominated."""
    node, at = problem.nodes[number], kept[number]
    limited = np.isfinite(problem.memory_limit)
    layers = list(_layers(node.charges, at))
    ends = []
    for edge, is_source in touching:
        other = kept[edge.target if is_source else edge.source]
        cells = np.ix_(at, other) if is_source else np.ix_(other, at)
        seconds = edge.seconds[cells] if is_source else edge.seconds[cells].T
        masks = [m[cells] if is_source else m[cells].T for m in edge.charges.values()]
        ends.append((seconds, masks))
    numbers = [node.seconds[at], node.memory[:, at] if limited else at[:0], *layers]
    arrays = [*numbers, *(a for seconds, masks in ends for a in (seconds, *masks))]
    key = b"".join(str(a.shape).encode() + a.tobytes() for a in arrays)
    if key not in known:
        worse = node.seconds[at][:, None] + 1e-15 >= _regret(node.seconds[at], ends)
        for array in [*node.memory[:, at]] if limited else []:
            worse &= array[:, None] >= array[None, :]
        for mask in layers:
            worse &= mask[:, None] | ~mask[None, :]
        for _, masks in ends:
            for mask in masks:
                worse &= ~(~mask[:, None, :] & mask[None, :, :]).any(axis=2)
        known[key] = _survivors(worse)
    return known[key]


def _regret(seconds: np.ndarray, ends: list[tuple[np.ndarray, list[np.ndarray]]]) -> np.ndarray:
    """Return, as `[k, k']`, what k' takes plus the most that it loses against k on the edges."""
    regret = np.tile(seconds, (len(seconds), 1))
    for each, _ in ends:
        regret = regret + (each[None, :, :] - each[:, None, :]).max(axis=2)
    return regret


def _layers(charges: Mapping[int, np.ndarray], at: np.ndarray) -> Iterator[np.ndarray]:
    for mask in charges.values():
        yield mask[at]


def _survivors(worse: np.ndarray) -> np.ndarray:
    """Return what stays if those are left out, one by one, that one still there dominates."""
    there = np.ones(len(worse), dtype=bool)
    np.fill_diagonal(worse, False)
    for choice in range(len(worse) - 1, -1, -1):
        if (worse[choice] & there).any():
            there[choice] = False
    return np.flatnonzero(there)
