"""Search for the layout with the least objective, by bounds and local moves.

Candidates with one kind of group to a GPU type come first, then those with more. Of each number of
stages the one with the least lower bound is next, in turn, until its bound is no less than the best
objective, or the time is up. Of each candidate the orders of its stages get the cut
with the least slowest stage, the best of them the zones with the least objective, and then moves:
layers to a neighbouring stage, and two stages exchanged.
"""

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain, islice, permutations
from math import inf
from typing import NamedTuple

from jaxpipe.errors import PlanError
from jaxpipe.search.layout.candidates import Candidate, candidates
from jaxpipe.search.layout.greedy_cut import greedy_cut
from jaxpipe.search.layout.layout import Layout, Stage
from jaxpipe.search.layout.layout_task import LayoutTask
from jaxpipe.search.layout.zones import placed, uses, zone_orders

_MOST_ORDERS = 24
_SHARES = (0.4, 0.7, 0.9)
"""Of the time until candidates with one kind to a GPU type end, with one more kind, with others."""
_REFINED = 12
"""The best layouts of a turn of which other zones, and then moves, are tried."""
_LATE = 0.1
"""A turn may end so much later to refine its layouts."""
_WORTH_MOVES = 1.05
"""Moves are tried from layouts that are at most so much worse than the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSearch:
    """The best layout, its objective, and what the search did.

    `bound` is the least bound that was not tried: no layout of the space is better, up to the slack
    of the bounds; it is the objective itself where the search ended before its limit. `floor` is
    the least bound of all, tried or not: the objective is at most so far from the best that exists.
    `best` are the best layouts, at most `num_best`, the best first.
    """

    layout: Layout
    objective: float
    bound: float
    floor: float
    best: tuple[Layout, ...]
    num_evaluated: int
    seconds: float


def search_layout(
    task: LayoutTask,
    *,
    limit_s: float,
    most_evaluated: float = inf,
    seed: int = 2022,
    num_best: int = 1,
) -> LayoutSearch:
    """Return the best layout that is found in some seconds of CPU, and the `num_best` best.

    A search that ends before the limit gives the same layout each time, also where it ends because
    `most_evaluated` layouts were. The limits do not count before the first layout that fits.

    Raises:
        PlanError: no layout fits.
    """
    search = _Search(task, limit_s=limit_s, most_evaluated=most_evaluated, seed=seed)
    began_s = time.process_time()
    bound = search.run()
    if search.best is None:
        raise PlanError(
            f"no layout has a finite objective: `gpus` are {dict(task.gpus)}; add memory, smaller "
            "`microbatches`, or more GPUs"
        )
    return LayoutSearch(
        layout=search.best,
        objective=search.least,
        bound=min(bound, search.least),
        floor=min(search.floor, search.least),
        best=search.first(num_best),
        num_evaluated=search.num_evaluated,
        seconds=time.process_time() - began_s,
    )


class _Look(NamedTuple):
    """A layout of a candidate in the first order of zones."""

    value: float
    microbatch: int
    stages: tuple[Stage, ...]
    layout: Layout


class _Search:
    def __init__(
        self, task: LayoutTask, *, limit_s: float, most_evaluated: float, seed: int
    ) -> None:
        self.best: Layout | None = None
        self.least = inf
        self.floor = inf
        self.num_evaluated = 0
        self._task = task
        self._began_s = time.process_time()
        self._limit_s = limit_s
        self._most_evaluated = most_evaluated
        self._random = random.Random(seed)
        self._orders = zone_orders(task)
        self._seen: dict[Layout, float] = {}

    def run(self) -> float:
        """Try candidates, and return the least bound of those that were not tried."""
        untried = inf
        turns: dict[int, list[Iterator[Candidate]]] = {}
        for (variety, _), each in candidates(self._task).items():
            first = next(each)  # the least bound of its number of stages
            self.floor = min(self.floor, first.bound)
            turns.setdefault(variety, []).append(chain([first], each))
        for variety in sorted(turns):
            until_s = self._began_s + self._limit_s * _SHARES[min(variety, len(_SHARES) - 1)]
            looked: list[_Look] = []
            waiting = deque(turns[variety])
            while waiting:
                candidate = next(waiting[0], None)
                # The others of its number of stages have bounds no less.
                if candidate is None or candidate.bound >= self.least:
                    waiting.popleft()
                elif self.best is not None and self._is_over(until_s):
                    waiting.popleft()
                    untried = min(untried, candidate.bound)
                else:
                    waiting.rotate(-1)
                    looked += self._look(candidate)
            looked.sort(key=lambda each: each.value)
            for look in looked[:_REFINED]:
                if self._is_over(until_s + _LATE * self._limit_s) or self._is_late():
                    break
                self._refine(look)
        return untried

    def first(self, num: int) -> tuple[Layout, ...]:
        """Return the best layouts that were evaluated, the best first."""
        finite = (layout for layout, value in self._seen.items() if value < inf)
        return tuple(nsmallest(num, finite, key=self._seen.__getitem__))

    def _look(self, candidate: Candidate) -> list[_Look]:
        """Return the best layout of each order of a candidate's kinds, in one order of zones."""
        return [
            _Look(self._value(layout), candidate.microbatch, stages, layout)
            for stages in self._distinct_orders(candidate.stages)
            for layout in self._layouts(candidate.microbatch, stages, self._orders[:1])
        ]

    def _refine(self, look: _Look) -> None:
        """Try all orders of zones for a layout, and then moves from the best."""
        others = self._layouts(look.microbatch, look.stages, self._orders[1:])
        layout = min((look.layout, *others), key=self._value)
        while self._value(layout) <= _WORTH_MOVES * self.least:
            moved = min(self._moves(layout), key=self._value, default=layout)
            if not self._value(moved) < self._value(layout) or self._is_late():
                return
            layout = moved

    def _is_late(self) -> bool:
        return self._is_over(self._began_s + self._limit_s)

    def _is_over(self, until_s: float) -> bool:
        return time.process_time() > until_s or self.num_evaluated >= self._most_evaluated

    def _value(self, layout: Layout) -> float:
        if layout not in self._seen:
            self.num_evaluated += 1
            value = self._task.objective(layout)
            self._seen[layout] = value
            if value < self.least:
                self.best, self.least = layout, value
        return self._seen[layout]

    def _distinct_orders(self, stages: tuple[Stage, ...]) -> list[tuple[Stage, ...]]:
        """Return different orders of the stages: all of few, some of many."""
        orders = list(islice(_arrangements(stages), _MOST_ORDERS + 1))
        if len(orders) <= _MOST_ORDERS:
            return orders
        shuffled = (tuple(self._random.sample(stages, len(stages))) for _ in range(_MOST_ORDERS))
        return list(dict.fromkeys((stages, stages[::-1], *shuffled)))

    def _layouts(
        self, microbatch: int, stages: tuple[Stage, ...], orders: Sequence[tuple[str, ...]]
    ) -> list[Layout]:
        """Return the layouts of stages in this order, with the best cut, in orders of zones."""
        cut = greedy_cut(
            self._task.costs, stages, num_layers=self._task.num_layers, microbatch=microbatch
        )
        if cut is None:
            return []
        return [
            Layout(cut=cut, stages=found, microbatch=microbatch)
            for order in orders
            for found in placed(self._task, stages, order)
            # Otherwise an order without its last zone gives the same layout.
            if order is self._orders[0] or uses(found, order[-1])
        ]

    def _moves(self, layout: Layout) -> Iterator[Layout]:
        """Yield layouts with a layer elsewhere, two stages exchanged, or one's groups reversed."""
        for source, target in permutations(range(layout.num_stages), 2):
            if layout.cut[source] > 1:
                cut = list(layout.cut)
                cut[source] -= 1
                cut[target] += 1
                yield replace(layout, cut=tuple(cut))
            if source < target and layout.stages[source] != layout.stages[target]:
                order = list(range(layout.num_stages))
                order[source], order[target] = target, source
                yield replace(
                    layout,
                    cut=tuple(layout.cut[n] for n in order),
                    stages=tuple(layout.stages[n] for n in order),
                )
        for number, stage in enumerate(layout.stages):
            if len(stage) > 1:
                stages = list(layout.stages)
                stages[number] = stage[::-1]
                yield replace(layout, stages=tuple(stages))


def _arrangements(stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
    """Yield the different orders of some stages, of which several may be equal."""
    if not stages:
        yield ()
    for stage in dict.fromkeys(stages):
        position = stages.index(stage)
        for rest in _arrangements(stages[:position] + stages[position + 1 :]):
            yield (stage, *rest)
