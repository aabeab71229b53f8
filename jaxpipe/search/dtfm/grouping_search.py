"""Search for the grouping of smallest cost: islands first, then evolution of local optima."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.search.dtfm.descent import descend, ordered
from jaxpipe.search.dtfm.exact import exact_grouping, num_groupings
from jaxpipe.search.dtfm.network import Network, prepare
from jaxpipe.search.dtfm.offspring import offspring
from jaxpipe.search.dtfm.swaps import Table, tabulate
from jaxpipe.search.dtfm.tiles import tilings
from jaxpipe.search.dtfm.weights import Weights

_POPULATION = 8
_CHILDREN_TIMES_DEVICES = 1200
_FEWEST_CHILDREN = 12
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of a search: the number of children and the seconds, whichever ends first.

    By default there are 1,200 / devices children, at least 12. If there are no more than
    `exhaustive` groupings, all of them are tried instead. A search that ends before `seconds` gives
    the same result in every run.
    """

    children: int | None = None
    seconds: float = inf
    exhaustive: int = 1000

    def __post_init__(self) -> None:
        if (self.children or 0) < 0 or not self.seconds > 0:
            raise PlanError(
                f"a search has time: `children` is {self.children} and `seconds` {self.seconds}; "
                "let the first be at least 0 and the second above 0"
            )

    def children_for(self, num_devices: int) -> int:
        """Return the number of children of a search among `num_devices` devices."""
        if self.children is not None:
            return self.children
        return max(_FEWEST_CHILDREN, _CHILDREN_TIMES_DEVICES // num_devices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """The result of a search: stages x members in the order of the pipeline, and its cost.

    `improvements` are pairs of seconds since the start and the best cost from then on.
    """

    stages: np.ndarray
    total: float
    improvements: tuple[tuple[float, float], ...]
    seconds: float


def search(
    weights: Weights,
    *,
    num_groups: int,
    group_size: int,
    seed: int = 0,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Grouping:
    """Return the best grouping found; devices that do not fit into the groups are left out.

    Tilings of the network's islands are the starts. Local search improves the best of them, then
    the children of the best optima.

    >>> far = np.array([[0, 9, 1, 9], [9, 0, 9, 1], [1, 9, 0, 9], [9, 1, 9, 0]], dtype=float)
    >>> search(Weights(hop=far, sync=far), num_groups=2, group_size=2).total
    11.0

    Raises:
        PlanError: the groups are empty, or there are too few devices for them.
    """
    _check_shape(num_groups, group_size, num_devices=len(weights.hop))
    budget = budget or Budget()
    watch = _Stopwatch(clock=clock, start=clock(), seconds=budget.seconds)
    tables = _tables(
        weights,
        (num_groups, group_size),
        budget=budget,
        random=np.random.default_rng(seed),
        watch=watch,
    )
    best: Table | None = None
    improvements: list[tuple[float, float]] = []
    for table in tables:
        if best is None or table.total < best.total - _TOLERANCE:
            best = table
            improvements.append((watch.elapsed, table.total))
    assert best is not None, (num_groups, group_size)
    return Grouping(
        stages=best.stages,
        total=best.total,
        improvements=tuple(improvements),
        seconds=watch.elapsed,
    )


def _check_shape(num_groups: int, group_size: int, *, num_devices: int) -> None:
    if num_groups < 1 or group_size < 1:
        raise PlanError(
            f"groups hold devices: `num_groups` is {num_groups}, `group_size` {group_size}; let "
            "both be at least 1"
        )
    if num_groups * group_size > num_devices:
        raise PlanError(
            f"each place needs a device: `num_groups` x `group_size` is {num_groups} x "
            f"{group_size} = {num_groups * group_size}, there are {num_devices} devices; use fewer "
            "groups, or smaller ones"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopwatch:
    """The elapsed time, and whether it exceeds the limit."""

    clock: Callable[[], float]
    start: float
    seconds: float

    @property
    def elapsed(self) -> float:
        return self.clock() - self.start

    def is_over(self) -> bool:
        return self.elapsed > self.seconds


def _tables(
    weights: Weights,
    shape: tuple[int, int],
    *,
    budget: Budget,
    random: np.random.Generator,
    watch: _Stopwatch,
) -> Iterator[Table]:
    """Yield tables of devices: the best of all groupings, or those that a search visits."""
    network = prepare(weights)
    num_groups, group_size = shape
    num_devices = len(network)
    count = num_groupings(num_devices=num_devices, num_groups=num_groups, group_size=group_size)
    # Few groupings are enumerated faster than the first generation descends.
    if count <= budget.exhaustive:
        best = exact_grouping(weights, num_groups=num_groups, group_size=group_size)
        yield tabulate(network, best)
        return
    children = budget.children_for(num_devices)
    yield from _optima(network, shape, children=children, random=random, stop=watch.is_over)


def _optima(
    network: Network,
    shape: tuple[int, int],
    *,
    children: int,
    random: np.random.Generator,
    stop: Callable[[], bool],
) -> Iterator[Table]:
    """Yield tables: the starts, the optima below the best of them, and those below children."""
    num_groups, group_size = shape
    starts: list[Table] = []
    for members in tilings(network, num_groups=num_groups, group_size=group_size):
        starts.append(tabulate(network, ordered(network, members)))
        # Yield before `stop`: a search without time returns a start, not nothing.
        yield starts[-1]
        if stop():
            return
    population: list[Table] = []
    for start in _distinct(starts):
        population.append(descend(network, start.stages, random=random, stop=stop))
        yield population[-1]
        if stop():
            return
    for _ in range(children):
        population = _distinct(population)
        child = offspring(network, [table.stages for table in population], random=random)
        population.append(descend(network, child, random=random, stop=stop))
        yield population[-1]
        if stop():
            return


def _distinct(tables: list[Table]) -> list[Table]:
    """Return the best tables, best first, one of each cost."""
    best: list[Table] = []
    for table in sorted(tables, key=lambda table: (table.total, table.spread)):
        # Equal costs are mostly the same grouping with twins swapped: copies leave nothing to mix.
        if len(best) < _POPULATION and (not best or table.total > best[-1].total + _TOLERANCE):
            best.append(table)
    return best
