"""What can follow each state of a search: decisions for the next operator, as rows of numbers.

States and decisions are numbered as they are found. The moves of a state are computed once, and
shared by all runs of a search.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jaxpipe.baselines.autoshard.duplex.decision import (
    Conversion,
    Held,
    OperatorDecision,
    conversions,
    held_after,
    options,
)
from jaxpipe.baselines.autoshard.duplex.form import FULL, Form
from jaxpipe.baselines.autoshard.duplex.labels import COLUMNS, step_row
from jaxpipe.baselines.autoshard.duplex.operator_cost import CostModel, OperatorCost

State = tuple[tuple[str, frozenset[Form]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesOfState:
    """The moves of a state: their numbers, their `labels.step_row`s, and the states after them."""

    numbers: np.ndarray
    steps: np.ndarray
    states: np.ndarray


class Moves:
    """The moves of a graph under a cost model.

    Attributes:
        decisions: of each move.
        first: the number of the state before the first operator, as an array.
        num_operators: of the graph.
    """

    def __init__(self, model: CostModel, *, with_memory: bool) -> None:
        self.decisions: list[OperatorDecision] = []
        self._model, self._with_memory = model, with_memory
        graph, num_devices = model.graph, model.profile.devices
        self.num_operators = len(graph.operators)
        self._last_reads = graph.last_reads()
        self._ways = [
            [
                (decision, model.of(operator, decision))
                for signature, stored in options(operator, graph, num_devices=num_devices)
                for decision in (OperatorDecision(signature, (), stored),)
            ]
            for operator in graph.operators
        ]
        self._found: dict[tuple[int, int], MovesOfState] = {}
        self._numbers: dict[State, int] = {}
        self._held: list[Held] = []
        self._moved: dict[Conversion, tuple[float, float]] = {}
        self.first = np.array([self._number({name: frozenset({FULL}) for name in graph.inputs})])

    def after(self, index: int, state: int) -> "MovesOfState":
        """Return the moves of an operator in a state."""
        key = (index, state)
        if key not in self._found:
            successors = [
                placed
                for decision, cost in self._new(index, self._held[state])
                for placed in self._placed(index, state, decision, cost)
            ]
            begin = len(self.decisions)
            self.decisions += [successor[0] for successor in successors]
            self._found[key] = MovesOfState(
                numbers=np.arange(begin, len(self.decisions)),
                steps=np.array([successor[1] for successor in successors]).reshape(
                    len(successors), COLUMNS + 1
                ),
                states=np.array([successor[2] for successor in successors], dtype=int),
            )
        return self._found[key]

    def loss_forms(self, state: int) -> frozenset[Form]:
        """Return the forms of the last operator's result."""
        return self._held[state][self._model.graph.operators[-1].output]

    def _new(self, index: int, forms: Held) -> Iterator[tuple[OperatorDecision, OperatorCost]]:
        operator = self._model.graph.operators[index]
        for way, cost in self._ways[index]:
            for moved in conversions(operator, way.signature, self._model.graph, forms):
                if not moved:
                    yield way, cost
                    continue
                seconds = [self._conversion_s(conversion) for conversion in moved]
                yield (
                    replace(way, conversions=moved),
                    replace(
                        cost,
                        forward_s=sum(pair[0] for pair in seconds),
                        backward_s=sum(pair[1] for pair in seconds),
                    ),
                )

    def _conversion_s(self, conversion: Conversion) -> tuple[float, float]:
        if conversion not in self._moved:
            self._moved[conversion] = self._model.conversion_s(conversion)
        return self._moved[conversion]

    def _placed(
        self, index: int, state: int, decision: OperatorDecision, cost: OperatorCost
    ) -> Iterator[tuple[OperatorDecision, tuple[float, ...], int]]:
        """Yield a decision in the open stage, in a new one, or both, with its step and next state.

        Without a collective a new stage is never better: the open one has the more credit. With
        activations to convert it is the only way.
        """
        operator, forms = self._model.graph.operators[index], self._held[state]
        after = held_after(operator, decision, forms, last_read=self._last_reads[index])
        number, row = (
            self._number(after),
            partial(
                step_row,
                cost,
                with_memory=self._with_memory,
                overlaps_backward=self._model.overlaps_backward,
            ),
        )
        if index and not decision.conversions:
            yield decision, row(new_stage=False), number
        if index == 0 or decision.conversions or cost.gather_s or cost.sync_s:
            yield replace(decision, starts_stage=True), row(new_stage=True), number

    def _number(self, forms: Held) -> int:
        state = tuple(sorted(forms.items(), key=lambda item: item[0]))
        if state not in self._numbers:
            self._numbers[state] = len(self._held)
            self._held.append(forms)
        return self._numbers[state]
