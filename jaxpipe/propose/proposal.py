"""Proposal: the best plan found for a configuration, its step, and what it is compared with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import median

from jaxpipe.collective import NO_CODECS, CodecLimit
from jaxpipe.collective.codec.codecs import bytes_per_value
from jaxpipe.config import Config, cluster_from
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import LowerBound
from jaxpipe.propose.codec_choice import (
    CodecChoice,
    Price,
    no_price,
    strongest,
    suited_to_codecs,
    with_codecs,
)
from jaxpipe.propose.conditions import trained_model
from jaxpipe.propose.machine_costs import machine_costs
from jaxpipe.propose.options import Goal, OuterQuestion, SearchOptions
from jaxpipe.propose.other_placements import NUM_RANDOM, dtfm_cost_s, elsewhere_s
from jaxpipe.propose.outer_advice import OuterAdvice, outer_advice
from jaxpipe.propose.query import (
    Query,
    bound_of,
    executable,
    generators_of,
    reasons_of,
    with_boundaries,
)
from jaxpipe.propose.reasons import Reason
from jaxpipe.propose.side_by_side import SideBySide, side_by_side
from jaxpipe.propose.unshared_links import UnsharedLinks, suited_to_sharing, unshared_links
from jaxpipe.propose.worth import Appraisal, Worth, worth_of
from jaxpipe.schedule import Remat
from jaxpipe.search import Effort, Found, Task, dtfm_plans, search
from jaxpipe.simulate import (
    Conditions,
    StepBreakdown,
    plan_step_s,
    step_bound_s,
    step_breakdown,
    step_objective,
)
from jaxpipe.simulate.outer_step import mean_step_s, slowest_island
from jaxpipe.topo import Cluster, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan and its evaluation; times are simulated seconds of a step.

    With an outer loop, they are means over its steps: `split` is the inner step of the slowest
    island, and `outer_s` what outer steps add.
    `identity_s` and `random_s` are the same plan with devices in their order and at random;
    `larger` is the shape of the best plan found with more devices, and its seconds, if some are
    left out. `advice` has the comparison with outer loops, if it was asked for. All times are those
    with the chosen `codecs`, if any were to be chosen. `precision` is that of matrix products.
    `dtfm_s` is None if replicas are unlike. `bound` holds for every plan for these devices. A step
    has `tokens`, and costs `dollars` and `watt_hours`, None without prices or powers; of a search
    that weighs these, `front` has the plans that no other beats. Where the cluster file states no
    NIC, `unlimited` is the host that sends most at once; where it states no trunks, `unshared` is
    what the plan owes to links between regions that share nothing. `reasons` are the alternatives
    of each choice, `notices` what was assumed of the cluster.
    """

    plan: Plan
    cluster: Cluster
    precision: Precision
    split: StepBreakdown
    outer_s: float
    dtfm_s: float | None
    identity_s: float
    random_s: tuple[float, ...]
    left_out: tuple[int, ...]
    larger: tuple[str, float] | None
    num_valued: int
    bound: LowerBound
    dollars: float | None
    watt_hours: float | None
    tokens: int
    front: tuple[Worth, ...] = ()
    advice: OuterAdvice | None = None
    codecs: CodecChoice | None = None
    unlimited: SideBySide | None = None
    unshared: UnsharedLinks | None = None
    reasons: tuple[Reason, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def step_s(self) -> float:
        """The seconds of a step; with an outer loop, on average."""
        return self.split.step_s + self.outer_s

    @property
    def random_median_s(self) -> float:
        """The median over the random placements."""
        return median(self.random_s)

    def cost(self, objective: Goal) -> float:
        """Return what an objective counts: seconds, unless it is dollars or watt-hours."""
        value = {Goal.DOLLARS: self.dollars, Goal.ENERGY: self.watt_hours}.get(objective)
        return self.step_s if value is None else value

    @property
    def unchecked(self) -> tuple[int, ...]:
        """The devices of the plan whose memory is unknown: it is not checked that stages fit."""
        devices = self.cluster.devices
        used = sorted(device for group in self.plan.groups for device in group)
        return tuple(device for device in used if devices[device].memory_bytes is None)


_NUM_AFTERWARDS = NUM_RANDOM + 8
"""Simulations after a search: at random, in order, with trunks, and for the breakdown."""


def propose(
    config: Config,
    options: SearchOptions | None = None,
    *,
    observe: Callable[[int], None] = lambda _: None,
    measuring: Callable[[str], None] | None = None,
    price: Price = no_price,
) -> Proposal:
    """Return the best plan found; `observe` is called with the number of plans simulated so far.

    `price` is a factor on the seconds of a step for the codecs that are chosen.

    With `measuring`, which is called with what is measured next, the model is measured on this
    machine where that was not done before.

    What the section `[plan]` sets is kept. Where `train.remat` is free and plans lack memory, each
    rematerialisation is searched for as long.

    Raises:
        ConfigError: there is no such cluster, or the speed of a device is unknown.
        PlanError: no plan fits into memory.
    """
    options = options or SearchOptions()
    _check_codecs(config, options)
    cluster = cluster_from(config)
    refusal: PlanError | None = None
    for costed, notices in machine_costs(config, cluster, observe=measuring):
        query = Query(config=costed, cluster=cluster)
        try:
            return replace(_proposed(query, options, observe, price), notices=notices)
        except PlanError as error:
            refusal = error
    assert refusal is not None, config
    raise refusal


def _proposed(
    query: Query, options: SearchOptions, observe: Callable[[int], None], price: Price
) -> Proposal:
    """Return the best plan found with the costs of a query, of all rematerialisations."""

    def study(remat: Remat) -> Proposal:
        return _Study(query=query, options=options, remat=remat, price=price).proposal(observe)

    proposals = query.of_remats(study)
    # Of equal costs the one that computes least again: element-wise work is not counted.
    best = min(proposals, key=lambda proposal: proposal.cost(options.objective))
    return replace(
        best,
        num_valued=sum(proposal.num_valued for proposal in proposals),
        reasons=(*best.reasons, *_remat_reasons(query, proposals)),
    )


def _check_codecs(config: Config, options: SearchOptions) -> None:
    limit = config.plan.codecs
    if limit is CodecLimit.NONE:
        return
    if options.has_front:
        raise ConfigError(
            f"`plan.codecs` ({limit}) is chosen by seconds, but dollars or energy matter: "
            "set it to none, or leave out the objective and the limits of these"
        )
    if options.outer is not OuterQuestion.NONE:
        raise ConfigError(
            f"`--outer` ({options.outer}) compares codecs of its own: set `plan.codecs` ({limit}) "
            "to none, or leave it out"
        )


def _remat_reasons(query: Query, proposals: Sequence[Proposal]) -> list[Reason]:
    """Return the seconds of each rematerialisation, if more than the first was tried."""
    seconds = {proposal.plan.remat: proposal.step_s for proposal in proposals}
    if not seconds.keys() - {query.remats[0]}:
        return []
    return [
        Reason(choice="remat", name=remat.value, step_s=seconds.get(remat))
        for remat in query.remats
    ]


@dataclass(slots=True, kw_only=True)
class _Study:
    """The search of a plan with one rematerialisation, and the evaluation of the best."""

    query: Query
    options: SearchOptions
    remat: Remat
    price: Price
    num_valued: int = 0
    appraisal: Appraisal | None = None

    def proposal(self, observe: Callable[[int], None]) -> Proposal:
        """Return the best plan found, evaluated.

        Messages have the configured codecs, unless `plan.codecs` asks to choose others.
        """
        options, config = self.options, self.query.config
        task, conditions = self.query.task(self.remat, max_tensor=options.max_tensor)
        limit, fewest = config.plan.codecs, conditions.codecs
        tokens = task.batch * trained_model(config).sequence
        if options.has_front:
            task = replace(task, any_size=True)
            self.appraisal = Appraisal(options=options, conditions=conditions, tokens=tokens)

        def find(conditions: Conditions, seconds: float) -> Found:
            return self._found(task, conditions, seconds, observe)

        budget = options.seconds(len(task.cluster))
        choice: CodecChoice | None = None
        if limit is CodecLimit.NONE:
            result = self._suited(find(conditions, budget), conditions)
            plan = with_boundaries(config, suited_to_codecs(result.plan, conditions))
            kinds = config.plan.boundaries or (fewest.boundary,)
            fewest = replace(fewest, boundary=min(kinds, key=bytes_per_value))
        else:
            fewest, conditions = strongest(limit), replace(conditions, codecs=NO_CODECS)
            result, choice = with_codecs(limit, conditions, find, seconds=budget, price=self.price)
            conditions, plan = replace(conditions, codecs=choice.codecs), choice.plan
        plan = replace(plan, remat=self.remat)
        split = step_breakdown(slowest_island(plan, conditions), conditions)
        outer_s = mean_step_s(plan, conditions) - split.step_s
        worth = worth_of(plan, conditions, step_s=split.step_s + outer_s)
        identity_s, random_s = elsewhere_s(task, plan, conditions, seed=options.seed)
        is_asked = options.outer is not OuterQuestion.NONE
        has_islands = conditions.outer is not None
        return Proposal(
            plan=plan,
            cluster=task.cluster,
            precision=task.precision,
            split=split,
            outer_s=outer_s,
            bound=bound_of(task, conditions, fewest),
            dollars=worth.dollars,
            watt_hours=worth.watt_hours,
            tokens=tokens,
            front=() if self.appraisal is None else tuple(self.appraisal.front),
            dtfm_s=dtfm_cost_s(plan, task.cluster),
            identity_s=identity_s,
            random_s=random_s,
            left_out=result.left_out,
            larger=_larger(result, plan),
            num_valued=self.num_valued,
            advice=outer_advice(plan, conditions) if is_asked else None,
            codecs=choice,
            unlimited=None if has_islands else side_by_side(plan, conditions),
            unshared=None if has_islands else unshared_links(plan, result, conditions),
            reasons=reasons_of(result),
        )

    def _suited(self, result: Found, conditions: Conditions) -> Found:
        """Return what was found, less dependent on unshared links where seconds alone count."""
        # Islands take little of the links between regions.
        has_islands = conditions.outer is not None
        if self.options.objective is not Goal.TIME or self.options.has_front or has_islands:
            return result
        return suited_to_sharing(result, conditions)

    def _found(
        self, task: Task, conditions: Conditions, seconds: float, observe: Callable[[int], None]
    ) -> Found:
        """Return what a search finds for the objective of the options."""
        options, before = self.options, self.num_valued
        clock = _EndingClock(most_s=seconds / 2)
        objective = self.appraisal or step_objective(conditions, exact=clock.plan_step_s)

        def count(number: int) -> None:
            self.num_valued = before + number
            observe(self.num_valued)

        is_dtfm = options.objective is Goal.DTFM
        found = search(
            task,
            executable(self.query.config, objective),
            # The bound is one of seconds.
            bound=(lambda _: 0.0)
            if self.appraisal
            else partial(step_bound_s, conditions=conditions),
            generators=((dtfm_plans, 1.0),) if is_dtfm else generators_of(self.query),
            effort=Effort(seconds=seconds, seed=options.seed),
            clock=clock.now,
            observe=count,
        )
        if self.appraisal is not None:
            self.appraisal.check_limits(found.plan)
        return found


@dataclass(slots=True, kw_only=True)
class _EndingClock:
    """A clock that is ahead by the time for what follows a search: simulations of its best plan.

    Seconds are those of the processor: other processes on the machine make no plan worse.
    Without that, a search of plans that are slow to simulate would exceed its seconds by minutes.
    It is ahead by `most_s` at most, for plans have to be found as well.
    """

    most_s: float
    ahead_s: float = 0.0

    def now(self) -> float:
        """Return the seconds of the processor, ahead of the real ones."""
        return time.process_time() + self.ahead_s

    def plan_step_s(self, plan: Plan, conditions: Conditions) -> float:
        """Simulate a whole step, and remember how long that takes."""
        start_s = time.process_time()
        step_s = plan_step_s(plan, conditions)
        took_s = time.process_time() - start_s
        self.ahead_s = min(self.most_s, max(self.ahead_s, _NUM_AFTERWARDS * took_s))
        return step_s


def _larger(found: Found, plan: Plan) -> tuple[str, float] | None:
    """Return the best shape of more ranks than the plan has, and its seconds."""
    # Best first: the first larger one is the best larger one.
    for candidate in found.of_choice("shape"):
        trial = candidate.trial
        if trial.value < inf and trial.plan.num_ranks > plan.num_ranks:
            return candidate.name, trial.value
    return None
