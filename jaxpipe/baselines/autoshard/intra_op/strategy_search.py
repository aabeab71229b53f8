"""Find the strategy that takes least: the space of all, what is left out of it, and the program."""

import time
from dataclasses import dataclass, replace
from math import inf

from jaxpipe.baselines.autoshard.graph import Graph
from jaxpipe.baselines.autoshard.intra_op.build_problem import Space, space_of
from jaxpipe.baselines.autoshard.intra_op.decode import choices_in, strategy_of
from jaxpipe.baselines.autoshard.intra_op.linear import solve
from jaxpipe.baselines.autoshard.intra_op.machine import Machine
from jaxpipe.baselines.autoshard.intra_op.restrict import (
    GradientReduction,
    batch_on_dp,
    gradients_reduced,
    kept_by,
    pinned,
)
from jaxpipe.baselines.autoshard.intra_op.strategy_cost import (
    Memory,
    collectives_of,
    memory_of,
    seconds_of,
)
from jaxpipe.baselines.autoshard.strategy import Collective, MeshShape, Pins, Strategy
from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """What the search may choose from, and how long it may take.

    `force_batch_axis` is Alpa's: dp splits the examples of the batch, and op does not. The memory
    limit holds for what `Memory` counts, an upper estimate.

    Raises:
        PlanError: a limit is not above 0.
    """

    force_batch_axis: bool = False
    gradient_reduction: GradientReduction = GradientReduction.FREE
    memory_limit_bytes: float = inf
    time_limit_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("memory_limit_bytes", "time_limit_s"):
            if not getattr(self, name) > 0:
                raise PlanError(f"`{name}` must be above 0, is {getattr(self, name)}; raise it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A strategy, its collectives, and what each device holds."""

    strategy: Strategy
    collectives: tuple[Collective, ...]
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedStrategy:
    """What the search has found, and how well it knows that nothing takes less.

    `gap` is how far the strategy is from the bound, as a part of it. `relaxed` says that the linear
    relaxation was whole, so that no branch was needed.
    """

    priced: Priced
    gap: float
    relaxed: bool
    num_choices: int
    solve_s: float


def find_strategy(
    graph: Graph,
    mesh: MeshShape,
    machine: Machine,
    *,
    pins: Pins | None = None,
    config: SearchConfig | None = None,
    name: str = "found",
) -> SearchedStrategy:
    """Return the strategy of the least predicted seconds among all that agree with the pins.

    Raises:
        PlanError: nothing agrees with all pins, fits the memory, or was found in time.
    """
    config = SearchConfig() if config is None else config
    space = space_of(graph, mesh, machine)
    if pins is not None:
        space = pinned(space, pins)
    if config.force_batch_axis:
        space = _checked(kept_by(space, batch_on_dp(space)), "`force_batch_axis`")
    reduced = kept_by(space, gradients_reduced(space, config.gradient_reduction))
    space = _checked(reduced, "`gradient_reduction`")
    limited = replace(space.problem, memory_limit=config.memory_limit_bytes)
    start = time.perf_counter()
    answer = solve(limited, time_limit_s=config.time_limit_s)
    solve_s = time.perf_counter() - start
    if answer.numbers is None:
        raise PlanError(
            f"cannot find a strategy within `memory_limit_bytes` ({config.memory_limit_bytes:.4g}) "
            f"and `time_limit_s` ({config.time_limit_s}); raise them, or take more devices"
        )
    # What runs: at most the problem's seconds, which let each reader slice from no other's layout.
    seconds = seconds_of(space, answer.numbers, machine)
    strategy = replace(strategy_of(space, answer.numbers, name=name), seconds=seconds)
    bound_s = min(answer.bound_s, seconds)  # HiGHS' bound may exceed the optimum by its tolerance
    return SearchedStrategy(
        priced=_priced(space, answer.numbers, replace(strategy, bound_s=bound_s)),
        # 1e-30: a step that costs nothing has no relative gap.
        gap=(seconds - bound_s) / max(abs(bound_s), 1e-30),
        relaxed=answer.relaxed,
        num_choices=sum(map(len, limited.nodes)),
        solve_s=solve_s,
    )


def price_strategy(graph: Graph, strategy: Strategy, machine: Machine) -> Priced:
    """Return what a strategy costs, as it is: one that was found before, or on another network.

    Raises:
        PlanError: the strategy is for another step.
    """
    space = space_of(graph, strategy.mesh, machine)
    numbers = choices_in(space, strategy)
    seconds = seconds_of(space, numbers, machine)
    again = replace(strategy_of(space, numbers, name=strategy.name), seconds=seconds)
    return _priced(space, numbers, again)


def _priced(space: Space, numbers: tuple[int, ...], strategy: Strategy) -> Priced:
    return Priced(
        strategy=strategy,
        collectives=collectives_of(space, numbers),
        memory=memory_of(space, numbers),
    )


def _checked(space: Space, what: str) -> Space:
    if not all(len(node) for node in space.problem.nodes):
        raise PlanError(
            f"cannot find a strategy that agrees with {what} and all pins; leave one of them out"
        )
    return space
