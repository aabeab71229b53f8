"""Search for the fastest strategy: a Pareto dynamic programme over the operators.

A state is what the rest of the step can see of a prefix: the forms of the live tensors. Each state
keeps the labels that no other label of it dominates (`jaxpipe.baselines.autoshard.duplex.labels`),
and each label remembers the one it came from. Labels that cannot end below a strategy that is known
already are dropped; the first such strategy is that of a search that keeps few labels.

Cost: linear in the operators, and independent of the number of devices.

Source: Zhang et al., "HiDup", SoCC 2022, section 5.2. Here parameters are counted once for both
halves, the backward overlaps like the forward, memory can be limited, and a stage has any number of
operators. Collectives of activations run before the operator that needs them.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from jaxpipe.baselines.autoshard.duplex.decision import OperatorDecision
from jaxpipe.baselines.autoshard.duplex.form import PARTIAL
from jaxpipe.baselines.autoshard.duplex.labels import (
    MEMORY,
    Rows,
    elapsed,
    extended,
    start,
    undominated,
)
from jaxpipe.baselines.autoshard.duplex.moves import Moves
from jaxpipe.baselines.autoshard.duplex.operator_cost import CostModel
from jaxpipe.baselines.autoshard.duplex.relaxed import RestBounds
from jaxpipe.baselines.autoshard.duplex.stage_seconds import memory_bytes
from jaxpipe.errors import PlanError

_FEW = 48
"""Labels that the first search keeps after each operator."""

_ROUNDING = 1e-9
"""Relative: sums in another order must not drop the best strategy itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplexResult:
    """A strategy, its predicted seconds and memory on each device, and how long the search took."""

    strategy: tuple[OperatorDecision, ...]
    seconds: float
    memory_bytes: float
    search_s: float


def search(model: CostModel, *, memory_limit_bytes: float = inf) -> DuplexResult:
    """Return the fastest strategy whose memory fits.

    Raises:
        PlanError: no strategy ends in partial sums of the loss, or none fits into the memory.
    """
    started = time.perf_counter()
    moves = Moves(model, with_memory=memory_limit_bytes < inf)
    searching = _Search(moves=moves, rest=RestBounds(moves), limit=memory_limit_bytes)
    few = searching.run(below=inf, at_most=_FEW)
    below = inf if few is None else few[1] * (1 + _ROUNDING)
    best = searching.run(below=below, at_most=None) or few
    if best is None:
        raise PlanError(_no_strategy(memory_limit_bytes))
    strategy, seconds = best
    return DuplexResult(
        strategy=strategy,
        seconds=seconds,
        memory_bytes=memory_bytes(model, strategy),
        search_s=time.perf_counter() - started,
    )


def _no_strategy(limit: float) -> str:
    if limit == inf:
        return (
            "no strategy: the graph's last operator must sum the loss over a label that can split"
        )
    return f"no strategy fits into `memory_limit_bytes` {limit:.3g}; allow more, or more devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """All labels after some operator: of each its state, the label before it and the decision."""

    states: np.ndarray
    rows: Rows
    before: np.ndarray
    decisions: np.ndarray

    def taken(self, at: np.ndarray) -> "_Front":
        return _Front(
            states=self.states[at],
            rows=self.rows[at],
            before=self.before[at],
            decisions=self.decisions[at],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    moves: Moves
    rest: RestBounds
    limit: float

    def run(
        self, *, below: float, at_most: int | None
    ) -> tuple[tuple[OperatorDecision, ...], float] | None:
        """Return the best strategy below a bound, of all or of the most promising labels."""
        none = np.full(1, -1)
        front = _Front(states=self.moves.first, rows=start(), before=none, decisions=none)
        fronts = [front]
        for index in range(self.moves.num_operators):
            front = self._after(front, index, below=below)
            if at_most is not None:
                front = front.taken(np.argsort(elapsed(front.rows), kind="stable")[:at_most])
            if not len(front.rows):
                return None
            fronts.append(front)
        return self._best(fronts)

    def _after(self, front: _Front, index: int, *, below: float) -> _Front:
        """Return the undominated labels after one more operator."""
        labels, moves, steps, states = map(
            np.concatenate, zip(*self._pairs(front, index), strict=True)
        )
        successors = _Front(
            states=states,
            rows=extended(front.rows[labels], steps),
            before=labels,
            decisions=moves,
        )
        fits = (self.rest.of(successors.rows, states, index) <= below) & (
            successors.rows[:, MEMORY] <= self.limit
        )
        successors = successors.taken(np.flatnonzero(fits))
        return _pruned(successors) if len(successors.rows) else successors

    def _pairs(self, front: _Front, index: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield, for each state, all pairs of a label and a move, with its step and next state."""
        for state, labels in _groups(front.states):
            moves, count = self.moves.after(index, state), len(labels)
            yield (
                np.repeat(labels, len(moves.numbers)),
                np.tile(moves.numbers, count),
                np.tile(moves.steps, (count, 1)),
                np.tile(moves.states, count),
            )

    def _best(self, fronts: list[_Front]) -> tuple[tuple[OperatorDecision, ...], float] | None:
        """Return the fastest strategy that ends in partial sums of the loss."""
        last = fronts[-1]
        ends = [PARTIAL in self.moves.loss_forms(state) for state in last.states]
        at = np.flatnonzero(ends)
        if not len(at):
            return None
        seconds = elapsed(last.rows[at])
        label = int(at[np.argmin(seconds)])
        strategy: list[OperatorDecision] = []
        for front in reversed(fronts[1:]):
            strategy.append(self.moves.decisions[front.decisions[label]])
            label = int(front.before[label])
        return tuple(reversed(strategy)), float(seconds.min())


def _pruned(front: _Front) -> _Front:
    """Keep the undominated labels of each state."""
    pruned = [labels[undominated(front.rows[labels])] for _, labels in _groups(front.states)]
    return front.taken(np.concatenate(pruned))


def _groups(states: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each state with the indices of its labels."""
    order = np.argsort(states, kind="stable")
    numbers, begins = np.unique(states[order], return_index=True)
    for number, labels in zip(numbers, np.split(order, begins[1:]), strict=True):
        yield int(number), labels
