"""The search problem in numbers: one choice at each node, with the least total cost.

    minimise   sum over nodes of seconds[choice]
             + sum over edges of seconds[choice of source, choice of target]
             + sum over charges of charge_s, once if any pick has it
    so that    at each peak the sum over nodes of memory[peak, choice] is within the limit

Charges are the starts of collectives that are combined: paid once, not by each part.

Source: Zheng et al., "Alpa", OSDI 2022, equation 1; charges and memory peaks are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

Kept = tuple[np.ndarray, ...]
"""The choices that are left of each node, by their numbers."""


def _none() -> Mapping[int, np.ndarray]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """A decision: seconds and bytes of each choice, and which choices have which charge."""

    seconds: np.ndarray
    memory: np.ndarray
    charges: Mapping[int, np.ndarray] = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge:
    """What each pair of choices at two nodes takes, source by target, and its charges."""

    source: int
    target: int
    seconds: np.ndarray
    charges: Mapping[int, np.ndarray] = field(default_factory=_none)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChoiceProblem:
    """Nodes, edges and charges; `memory_limit` is in bytes, at each peak."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    charge_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    memory_limit: float = np.inf

    def seconds(self, numbers: Sequence[int]) -> float:
        """Return what a choice at each node takes."""
        total = sum(float(node.seconds[c]) for node, c in zip(self.nodes, numbers, strict=True))
        total += sum(float(e.seconds[numbers[e.source], numbers[e.target]]) for e in self.edges)
        paid = {  # a set: each charge once, whatever the number of parts
            number
            for node, choice in zip(self.nodes, numbers, strict=True)
            for number, mask in node.charges.items()
            if mask[choice]
        } | {
            number
            for edge in self.edges
            for number, mask in edge.charges.items()
            if mask[numbers[edge.source], numbers[edge.target]]
        }
        return total + sum(float(self.charge_s[number]) for number in paid)

    def memory(self, numbers: Sequence[int]) -> np.ndarray:
        """Return the bytes at each moment."""
        pairs = zip(self.nodes, numbers, strict=True)
        return np.sum([node.memory[:, choice] for node, choice in pairs], axis=0)

    def fits(self, numbers: Sequence[int]) -> bool:
        """Return whether no moment needs more than the limit."""
        return bool((self.memory(numbers) <= self.memory_limit).all())


def restricted(problem: ChoiceProblem, remaining: Kept) -> ChoiceProblem:
    """Return the problem with these choices alone."""
    nodes = tuple(
        Node(
            seconds=node.seconds[at],
            memory=node.memory[:, at],
            charges={charge: mask[at] for charge, mask in node.charges.items()},
        )
        for node, at in zip(problem.nodes, remaining, strict=True)
    )
    edges = []
    for edge in problem.edges:
        cells = np.ix_(remaining[edge.source], remaining[edge.target])
        charges = {charge: mask[cells] for charge, mask in edge.charges.items()}
        edges.append(
            Edge(
                source=edge.source,
                target=edge.target,
                seconds=edge.seconds[cells],
                charges=charges,
            )
        )
    return ChoiceProblem(
        nodes=nodes,
        edges=tuple(edges),
        charge_s=problem.charge_s,
        memory_limit=problem.memory_limit,
    )
