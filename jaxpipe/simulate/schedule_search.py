"""Search for the fastest schedule of a step with the simulator: named and greedy schedules.

The search goes over warm-up depths and the placement of weight gradients::

    named schedules that fit into memory          GPipe, 1F1B, eager 1F1B, ZB-H1, ZB-H2
    greedy ones, warm-ups on a slope              rank s of p: 1 + k (p - 1 - s), for several k
    the best of these, one rank deeper or         as long as it improves
    shallower
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from jaxpipe.errors import PlanError
from jaxpipe.network import lone_message_s
from jaxpipe.schedule import (
    Costs,
    Instruction,
    Schedule,
    ScheduleKind,
    WeightPlacement,
    backward_input,
    backward_weight,
    forward,
    generate,
    greedy,
    lower,
    peak_live,
)
from jaxpipe.simulate.engine.simulator import simulate_ends
from jaxpipe.simulate.engine.step_model import Phase, StepModel

_SLOPES = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Warm-up microbatches of a rank in addition to the next rank's: 1F1B has 1, ZB-H2 has 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A schedule of compute instructions and the simulated seconds of its step.

    It is of `kind`, or greedy with `weights`; `warmup` is its depth by rank if that is free.
    """

    compute: Schedule
    step_s: float
    kind: ScheduleKind | None = None
    weights: WeightPlacement | None = None
    warmup: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The input of a search: ranks, links and durations of `job`, whose phases are ignored.

    `max_live[r]` is the number of microbatches whose activations fit into the memory of rank r of a
    pipeline; `tied` says whether the first and the last stage share the embedding.

    Raises:
        PlanError: a rank has no memory for a microbatch, or ranks have several chunks.
    """

    job: StepModel
    num_microbatches: int
    max_live: tuple[int, ...]
    tied: bool = False

    def __post_init__(self) -> None:
        num_ranks = self.job.num_pipeline_ranks
        if len(self.max_live) != num_ranks or not all(limit >= 1 for limit in self.max_live):
            raise PlanError(
                f"`max_live` must have a number of at least 1 for each of {num_ranks} ranks, not "
                f"{self.max_live}"
            )
        if self.job.num_chunks > 1:
            raise PlanError(
                f"`num_chunks` must be 1 to search for a schedule, not {self.job.num_chunks}; name "
                "the interleaved schedule instead"
            )


def auto_schedule(search: Search, *, num_rounds: int = 4) -> Candidate:
    """Return the fastest schedule found; none of `named_schedules` is faster.

    Cost: a simulated step for each of some 20 schedules, and for 2 of each rank in each round.

    Raises:
        PlanError: there are no microbatches.
    """
    costs = costs_of(search.job)
    measured = _fastest(
        _greedy(search, costs, warmup=warmup, weights=weights)
        for weights in WeightPlacement
        for warmup in dict.fromkeys(_slopes(search))  # limits of memory make some slopes equal
    )
    for _ in range(num_rounds):
        weights = measured.weights
        assert weights is not None, measured
        around = set(_around(measured.warmup, search)) - {measured.warmup}
        better = _fastest(
            (
                measured,  # first: an equal neighbour is no improvement
                *(
                    _greedy(search, costs, warmup=warmup, weights=weights)
                    for warmup in sorted(around)  # a set has no order, and the first of equals wins
                ),
            )
        )
        if better is measured:
            break
        measured = better
    return _fastest((*named_schedules(search), measured))  # among equals, a name wins


def named_schedules(search: Search) -> tuple[Candidate, ...]:
    """Return the named schedules that fit into memory, simulated.

    The warm-up of eager 1F1B is limited to the memory, so there is always one.
    """
    size = search.job.num_pipeline_ranks
    # Generators refuse a warm-up that increases from a rank to the next.
    fitting = tuple(accumulate(search.max_live, min))
    found = []
    for kind in ScheduleKind:
        if kind is ScheduleKind.INTERLEAVED:
            continue
        warmup = None
        if kind is ScheduleKind.EAGER_ONE_F_ONE_B:
            eager = (2 * (size - rank) - 1 for rank in range(size))
            warmup = tuple(
                min(*depths, search.num_microbatches) for depths in zip(eager, fitting, strict=True)
            )
        compute = generate(
            kind, num_stages=size, num_microbatches=search.num_microbatches, warmup=warmup
        )
        peaks = zip(peak_live(compute), search.max_live, strict=True)
        if all(peak <= limit for peak, limit in peaks):
            step_s = _step_s(search, compute)
            found.append(Candidate(compute=compute, step_s=step_s, kind=kind, warmup=warmup))
    return tuple(found)


def costs_of(job: StepModel) -> Costs:
    """Return the seconds of stages and of messages between them, of the slowest replica each."""
    # Ranks are stages here: `Search` has refused several chunks.
    stages = range(job.num_stages)
    ranks = [range(stage, job.num_ranks, job.num_stages) for stage in stages]

    def slowest(compute: Callable[[int, int], Instruction]) -> tuple[float, ...]:
        return tuple(
            max(job.seconds(compute(stage, 0), rank=rank) for rank in ranks[stage])
            for stage in stages
        )

    hops = [list(pairwise(row)) for row in job.placement]

    def message_s(first: int, hop: tuple[int, int]) -> float:
        num_bytes = job.message_bytes(first, first + 1)
        both = (hop, (hop[1], hop[0]))
        return max(lone_message_s(job.cluster, pair, num_bytes=num_bytes) for pair in both)

    both = [
        [message_s(first + stage, hop) for stage, hop in enumerate(row)]
        for first, row in zip(job.first_ranks, hops, strict=True)
    ]
    return Costs(
        forward_s=slowest(forward),
        backward_input_s=slowest(backward_input),
        backward_weight_s=slowest(backward_weight),
        message_s=tuple(max(column) for column in zip(*both, strict=True)),
    )


def _step_s(search: Search, compute: Schedule) -> float:
    schedule = lower(compute, tied=search.tied, num_replicas=len(search.job.placement))
    return simulate_ends(replace(search.job, phases=(Phase(schedule=schedule),))).last_s


def _greedy(
    search: Search, costs: Costs, *, warmup: tuple[int, ...], weights: WeightPlacement
) -> Candidate:
    compute = greedy(
        costs,
        num_microbatches=search.num_microbatches,
        warmup=warmup,
        max_live=search.max_live,
        weights=weights,
    )
    step_s = _step_s(search, compute)
    return Candidate(compute=compute, step_s=step_s, weights=weights, warmup=warmup)


def _fastest(candidates: Iterable[Candidate]) -> Candidate:
    """Return the fastest; among equals the first."""
    return min(candidates, key=lambda each: each.step_s)


def _slopes(search: Search) -> Iterator[tuple[int, ...]]:
    for slope in _SLOPES:
        behind = reversed(range(len(search.max_live)))
        yield _within((1 + int(slope * after) for after in behind), search)


def _around(warmup: tuple[int, ...] | None, search: Search) -> Iterator[tuple[int, ...]]:
    """Return warm-ups of which one rank differs by one."""
    assert warmup is not None
    for rank in range(len(warmup)):
        for change in (1, -1):
            changed = (depth + change * (rank == place) for place, depth in enumerate(warmup))
            yield _within(changed, search)


def _within(depths: Iterable[int], search: Search) -> tuple[int, ...]:
    return tuple(
        max(1, min(depth, limit, search.num_microbatches))
        for depth, limit in zip(depths, search.max_live, strict=True)
    )
