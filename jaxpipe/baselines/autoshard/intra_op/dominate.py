"""Prune dominated choices: another one is better whatever the neighbours choose.

Choice k of a node is dominated by k' if k' takes no longer at the node plus, over its edges, the
most that k' can lose against k, and needs no more memory::

    seconds[k'] + sum over edges of max over j of (edge[k', j] - edge[k, j]) <= seconds[k]

A charge that k' has and k has not counts as if k' alone had to pay it.

Some optimum has no dominated choice, so leaving them out changes no answer. Fewer choices of a node
leave its neighbours less to lose, so it is done again until nothing changes. Layers repeat: nodes
whose numbers are all alike are looked at once.

Source: the dominance of preprocessing in weighted constraint satisfaction (dead-end elimination,
Desmet et al. 1992).
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from jaxpipe.baselines.autoshard.intra_op.problem import ChoiceProblem, Edge, Kept


def undominated(problem: ChoiceProblem, *, num_rounds: int = 4) -> Kept:
    """Return the choices of each node that no other dominates.

    >>> from jaxpipe.baselines.autoshard.intra_op.problem import Node
    >>> node = Node(seconds=np.array([2.0, 1.0]), memory=np.zeros((1, 2)))
    >>> undominated(ChoiceProblem(nodes=(node,), edges=()))
    (array([1]),)
    """
    touching: dict[int, list[tuple[Edge, bool]]] = defaultdict(list)
    for edge in problem.edges:
        touching[edge.source].append((edge, True))
        touching[edge.target].append((edge, False))
    remaining = [np.arange(len(node)) for node in problem.nodes]
    changed = set(range(len(problem.nodes)))
    for _ in range(num_rounds):
        known: dict[bytes, np.ndarray] = {}
        again: set[int] = set()
        # In a fixed order: pruning a node changes how much its neighbours can lose.
        for number in sorted(changed):
            best = _best(problem, number, touching[number], remaining, known)
            if len(best) < len(remaining[number]):
                remaining[number] = remaining[number][best]
                # Only neighbours of a node that lost choices have less to lose than before.
                again |= {e.target if is_source else e.source for e, is_source in touching[number]}
        changed = again
    return tuple(remaining)


def _best(
    problem: ChoiceProblem,
    number: int,
    touching: list[tuple[Edge, bool]],
    remaining: list[np.ndarray],
    known: dict[bytes, np.ndarray],
) -> np.ndarray:
    """Return which of the choices kept of a node are not dominated."""
    node, at = problem.nodes[number], remaining[number]
    # Without a limit, less memory must not keep a choice.
    memory = node.memory[:, at] if np.isfinite(problem.memory_limit) else node.memory[:0, at]
    masks = {charge: mask[at, None] for charge, mask in node.charges.items()}
    # The node itself is a table with one column: its neighbour has no choice.
    tables = [_Table(seconds=node.seconds[at, None], charges=masks)]
    for edge, is_source in touching:
        other = remaining[edge.target if is_source else edge.source]
        tables.append(_table(edge, at, other, is_source=is_source))
    # Equal layers have equal tables: the key replaces a comparison of n ** 2 pairs of choices.
    key = b"".join([memory.tobytes(), *(table.key() for table in tables)])
    if key not in known:
        regret = np.sum([table.regret(problem.charge_s) for table in tables], axis=0)
        needs_more = (memory[:, None, :] > memory[:, :, None]).any(axis=0)  # at any peak
        known[key] = _survivors((regret <= 0) & ~needs_more)
    return known[key]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """What each choice of a node (a row) takes with each choice of one neighbour (a column)."""

    seconds: np.ndarray
    charges: dict[int, np.ndarray]

    def key(self) -> bytes:
        """Return a key that equal tables share."""
        arrays = [self.seconds, *self.charges.values()]
        return b"".join(
            [str((self.seconds.shape, *self.charges)).encode(), *(a.tobytes() for a in arrays)]
        )

    def regret(self, charge_s: np.ndarray) -> np.ndarray:
        """Return the most that choice k' takes more than choice k, as `[k, k']`."""
        # [k, k', j]: choices ** 2 x choices of the neighbour, small once that is pruned.
        more = self.seconds[None, :, :] - self.seconds[:, None, :]
        for charge, mask in self.charges.items():
            # Pessimistic, as another node may pay the charge anyway: pruning may keep too much.
            more = more + charge_s[charge] * (mask[None, :, :] & ~mask[:, None, :])
        return more.max(axis=2)


def _table(edge: Edge, at: np.ndarray, other: np.ndarray, *, is_source: bool) -> _Table:
    """Return the table of an edge, for the choices kept at its ends."""

    def turned(array: np.ndarray) -> np.ndarray:
        return array[np.ix_(at, other)] if is_source else array[np.ix_(other, at)].T

    return _Table(
        seconds=turned(edge.seconds),
        charges={charge: turned(mask) for charge, mask in edge.charges.items()},
    )


def _survivors(worse: np.ndarray) -> np.ndarray:
    """Return the choices that remain when dominated ones are removed one by one."""
    there = np.ones(len(worse), dtype=bool)
    np.fill_diagonal(worse, False)
    # One by one: of two equal choices, each dominates the other, and one must stay.
    for choice in range(len(worse) - 1, -1, -1):
        if (worse[choice] & there).any():
            there[choice] = False
    return np.flatnonzero(there)
