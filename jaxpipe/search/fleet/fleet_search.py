"""Search for the plan of a fleet: blocks of equal devices first, then one block after the other.

::

    start      all blocks alike: stages, direction, microbatch; or     some hundred plans
               replicas of any devices of a region
    by kind    another choice, or none, for all blocks of a kind       until none helps
    by block   another choice, or none, for each block                 until none helps
    pools      replicas of what the blocks of a region leave over,     until none helps
               or of all of its devices

Each start has a descent of its own. Every plan is valued by `jaxpipe.search.fleet.fleet_cost`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from jaxpipe.errors import PlanError
from jaxpipe.plan.plan import Plan
from jaxpipe.search.build_plan import first_schedules
from jaxpipe.search.fleet.blocks import Along, Choice, Teams, blocks_of
from jaxpipe.search.fleet.fleet_cost import FleetCosts, FleetStep
from jaxpipe.search.fleet.fleet_plan import Fits, plan_of_teams
from jaxpipe.search.fleet.team import Team

_MICROBATCHES = (1, 2, 4, 8)
_MOST_STAGES = 64
_NONE = Choice(stages=0)
"""A block that is left out."""
_GAIN = 1e-4
"""A change has to gain so much of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChoice:
    """A choice for each block by its number, the size of microbatches, further replicas."""

    of_block: dict[int, Choice]
    microbatch: int
    pools: tuple[tuple[str, int], ...] = ()
    """Regions whose left-over devices have replicas of their own, and the stages of these."""

    def with_block(self, number: int, choice: Choice) -> "FleetChoice":
        """Return the choice with another one for a block; what is left over changes with it."""
        return replace(self, of_block={**self.of_block, number: choice})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSearch:
    """The plan, its step in closed form, and what the search did.

    `coarse_s` is the step of the best start.
    """

    plan: Plan
    step: FleetStep
    coarse_s: float
    num_valued: int
    seconds: float


def search_fleet(
    costs: FleetCosts,
    *,
    limit_s: float = inf,
    observe: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> FleetSearch:
    """Return the best plan that is found in some seconds; a search that ends before is repeatable.

    `observe` is called with the number of plans valued so far. Time and memory grow with the number
    of devices; the plan takes as long again to build.

    Raises:
        PlanError: no plan fits.
    """
    search = _Search(costs, limit_s=limit_s, observe=observe or (lambda _: None), clock=clock)
    coarse_s = search.run()
    if search.step is None:
        task = costs.task
        raise PlanError(
            f"a plan fits into its devices: none does for {task.num_layers} layers, `batch` "
            f"{task.batch} and the {len(task.cluster)} devices of cluster {task.cluster.name!r}; "
            "take larger devices, a smaller model, another batch, or rematerialise"
        )
    plan = plan_of_teams(
        costs.task,
        search.teams,
        search.step.counts,
        microbatch=search.best.microbatch,
        schedule=search.schedule,
    )
    return FleetSearch(
        plan=plan,
        step=search.step,
        coarse_s=coarse_s,
        num_valued=search.num_valued,
        seconds=search.spent_s,
    )


class _Search:
    """The best choice so far."""

    def __init__(
        self,
        costs: FleetCosts,
        *,
        limit_s: float,
        observe: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        self.best = FleetChoice(of_block={}, microbatch=1)
        self.step: FleetStep | None = None
        self.teams: list[Team] = []
        self.schedule = first_schedules(costs.task, 1)[0]
        self.num_valued = 0
        self._costs = costs
        self._fits = Fits(costs.task)
        self._teams = Teams(costs.task, blocks_of(costs.task))
        self._clock = clock
        self._began_s = clock()
        self._limit_s = limit_s
        self._observe = observe

    @property
    def spent_s(self) -> float:
        """The seconds since the search began."""
        return self._clock() - self._began_s

    def run(self) -> float:
        """Search from several starts, and return the step of the best plan whose blocks are alike.

        A descent from the better start may end in the worse plan. Of the changes of a kind one
        descent takes each that helps, another the best of all: few changes of much.
        """
        coarse_s, found = inf, None
        whole_s = self._limit_s
        for starts, is_best, share in (
            (self._alike, False, 0.5),
            (self._alike, True, 0.75),
            (self._mixed, True, 1.0),
        ):
            self.step, self._limit_s = None, share * whole_s
            self._offer_all(starts())
            if self.step is None:
                continue
            coarse_s = min(coarse_s, self.step.step_s)
            self._descend(lambda is_best=is_best: self._of_kinds(at_once=is_best))
            self._descend(self._of_blocks)
            self._descend(self._of_pools)
            ended = (self.best, self.step, self.teams, self.schedule)
            found = min(found or ended, ended, key=lambda each: each[1].step_s)
        if found is not None:
            self.best, self.step, self.teams, self.schedule = found
        return coarse_s

    def _descend(self, changes: Callable[[], Iterable[FleetChoice]]) -> None:
        """Take changes of the best choice, until none helps."""
        while self._offer_all(changes()) and not self._is_late():
            pass

    def _offer_all(self, choices: Iterable[FleetChoice]) -> bool:
        """Value choices until the time is up; return whether one was better."""
        is_better = False
        for each in choices:
            if self._is_late():
                break
            # All of them: the first that helps is not the best.
            is_better |= self._offer(each)
        return is_better

    def _is_late(self) -> bool:
        # Never before the first plan.
        return self.step is not None and self.spent_s > self._limit_s

    def _offer(self, choice: FleetChoice) -> bool:
        """Value a choice, and keep it if it is better."""
        teams = self._teams.of(choice.of_block)
        for region, stages in choice.pools:
            teams += self._teams.pooled(choice.of_block, region, stages)
        if not teams:
            return False
        fits = partial(self._fits, teams, microbatch=choice.microbatch)
        kinds = first_schedules(self._costs.task, max(len(team.cut) for team in teams))
        schedule = next((kind for kind in kinds if fits(schedule=kind)), None)
        if schedule is None:
            return False
        step = self._costs.step(teams, microbatch=choice.microbatch, schedule=schedule)
        self.num_valued += 1
        self._observe(self.num_valued)
        least = inf if self.step is None else self.step.step_s
        if not step.step_s < (1 - _GAIN) * least:
            return False
        self.best, self.step, self.teams, self.schedule = choice, step, teams, schedule
        return True

    def _choices(self) -> Iterator[Choice]:
        task = self._costs.task
        most = min(task.num_layers, _MOST_STAGES, len(task.cluster))
        for stages in _sizes(most) if task.fixed.depth is None else (task.fixed.depth,):
            for along in Along:
                if stages > 1 or along is Along.PIPELINE:
                    yield Choice(stages=stages, along=along)

    def _alike(self) -> Iterator[FleetChoice]:
        numbers = range(len(self._teams.blocks))
        for microbatch in self._microbatches():
            for choice in self._choices():
                yield FleetChoice(of_block=dict.fromkeys(numbers, choice), microbatch=microbatch)

    def _mixed(self) -> Iterator[FleetChoice]:
        """Yield plans whose replicas take the devices of a region, whatever their kind."""
        for microbatch in self._microbatches():
            for stages in dict.fromkeys(choice.stages for choice in self._choices()):
                none = dict.fromkeys(range(len(self._teams.blocks)), _NONE)
                pools = tuple((region, stages) for region in self._regions)
                yield FleetChoice(of_block=none, microbatch=microbatch, pools=pools)

    @property
    def _regions(self) -> list[str]:
        return list(dict.fromkeys(block.region for block in self._teams.blocks))

    def _without(self, region: str) -> FleetChoice:
        """Return the best choice without the replicas of a region."""
        blocks = enumerate(self._teams.blocks)
        left_out = {n: _NONE for n, block in blocks if block.region == region}
        kept = tuple(pool for pool in self.best.pools if pool[0] != region)
        return replace(self.best, of_block={**self.best.of_block, **left_out}, pools=kept)

    def _microbatches(self) -> list[int]:
        return [size for size in _MICROBATCHES if self._costs.task.batch % size == 0]

    def _of_kinds(self, *, at_once: bool) -> Iterable[FleetChoice]:
        """Return changes of all blocks of a kind; `at_once` none of them builds on another."""
        return list(self._changes_of_kinds()) if at_once else self._changes_of_kinds()

    def _changes_of_kinds(self) -> Iterator[FleetChoice]:
        """Yield changes of all blocks of a kind, and of the microbatch."""
        blocks = self._teams.blocks
        for kind in dict.fromkeys(block.kind for block in blocks):
            for choice in (_NONE, *self._choices()):
                changed = {n: choice for n, block in enumerate(blocks) if block.kind == kind}
                yield replace(self.best, of_block={**self.best.of_block, **changed})
        for microbatch in self._microbatches():
            yield replace(self.best, microbatch=microbatch)

    def _of_blocks(self) -> Iterator[FleetChoice]:
        """Yield changes of whole regions, and of single blocks."""
        for region in self._regions:
            yield self._without(region)
        for number in range(len(self._teams.blocks)):
            for choice in self._near(self.best.of_block[number]):
                yield self.best.with_block(number, choice)

    def _near(self, choice: Choice) -> list[Choice]:
        """Return none, what other blocks have, and the next numbers of stages."""
        known = list(self._choices())
        sizes = sorted({each.stages for each in known})
        place = sizes.index(choice.stages) if choice.stages else len(sizes)
        next_ones = [size for size in sizes[max(0, place - 1) : place + 2] if choice.stages]
        found = dict.fromkeys((_NONE, *self.best.of_block.values()))
        found |= dict.fromkeys(each for each in known if each.stages in next_ones)
        return [each for each in found if each != choice]

    def _of_pools(self) -> Iterator[FleetChoice]:
        """Yield pools of a region: of what its blocks leave over, and of all of its devices."""
        sizes = {each.stages for each in self.best.of_block.values()}
        sizes |= {stages for _, stages in self.best.pools}
        for region in self._regions:
            for stages in sorted(sizes - {0}):
                for choice in (self.best, self._without(region)):
                    kept = tuple(pool for pool in choice.pools if pool[0] != region)
                    yield replace(choice, pools=(*kept, (region, stages)))


def _sizes(most: int) -> list[int]:
    """Return the numbers of stages that are tried: all up to 8, then in steps of about an eighth.

    >>> _sizes(20)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20]
    """
    found, size = [], 1
    while size <= most:
        found.append(size)
        size += max(1, size // 8)
    return found
