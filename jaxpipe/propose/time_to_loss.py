"""Which compression reaches a loss first: none, codecs, boundaries of low rank, or islands.

For each method a plan is searched and its step simulated. A method that learns less from a step
needs more of them, by the factor of its price in loss (`jaxpipe.outer.loss_law`)::

    method              what crosses                           price in loss
    uncompressed        everything                             none
    codecs              bf16 or int8, with `any` less          of a small model (`loss_prices`)
    rank                few of a token's numbers, at those     the same
                        boundaries where it pays (`rank_choice`)
    rank and codecs     both, each where it pays               the sum of both
    islands             an outer step every 30 steps           by published scaling laws

    seconds to the loss = `train.steps` * factor * seconds of a step

Methods with a higher price than `--max-loss-percent` are left out. The loss is the one that
uncompressed training has after `train.steps`. Islands and bottlenecks exclude each other in a run,
so there is no method with both.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from math import inf

from jaxpipe.collective import NO_CODECS, CodecKind, CodecLimit
from jaxpipe.config import Config, check_plan_fits, check_settings, cluster_from
from jaxpipe.errors import ConfigError, UserError
from jaxpipe.models import GptConfig
from jaxpipe.models.bottleneck_costs import bottlenecks_of
from jaxpipe.outer import OuterConfig
from jaxpipe.outer.loss_law import (
    COVERED_STEPS,
    compute_factor,
    meeting_every,
    published_sizes,
)
from jaxpipe.plan import Plan
from jaxpipe.propose.loss_prices import codec_gap, outer_gap, rank_gap
from jaxpipe.propose.loss_proposal import LossProposal, Method
from jaxpipe.propose.machine_costs import machine_costs
from jaxpipe.propose.options import Goal, OuterQuestion, SearchOptions
from jaxpipe.propose.outer_advice import choice_name, num_parameters, outer_choices
from jaxpipe.propose.proposal import propose
from jaxpipe.propose.query import Query
from jaxpipe.propose.rank_choice import (
    Bottlenecks,
    RankChoice,
    as_section,
    between_regions,
    choose_ranks,
)
from jaxpipe.propose.region_islands import IslandPlan, island_groups, island_plan
from jaxpipe.schedule import Remat
from jaxpipe.topo import Cluster


def propose_to_loss(
    config: Config,
    options: SearchOptions,
    *,
    observe: Callable[[int], None] = lambda _: None,
    measuring: Callable[[str], None] | None = None,
) -> LossProposal:
    """Return what each method takes to the loss; each is searched for the options' seconds.

    Raises:
        ConfigError: the configuration has compression of its own, or the options compare it too.
        PlanError: no plan fits.
    """
    _check(config, options)
    most_gap = inf if options.max_loss_percent is None else options.max_loss_percent / 100
    options = replace(options, objective=Goal.TIME, max_loss_percent=None)
    cluster = cluster_from(config)
    study = _Study(config, cluster, options, most_gap, observe, measuring)
    methods, refusals = list(study.uncompressed()), []
    for name, find in (
        ("codecs", study.codecs),
        ("rank", study.rank),
        ("rank and codecs", study.rank_and_codecs),
        ("islands", study.islands),
    ):
        try:
            methods += _within(most_gap, find())
        except UserError as error:
            refusals.append((name, str(error)))
    return LossProposal(
        methods=tuple(methods),
        refusals=tuple(refusals),
        steps=config.train.steps,
        num_valued=study.num_valued,
        notices=next(p.notices for m in methods if (p := m.proposal) is not None),
    )


def _within(most_gap: float, methods: Iterator[Method]) -> list[Method]:
    """Return the methods whose price is within the limit.

    Raises:
        ConfigError: there is none.
    """
    answers = list(methods)
    within = [m for m in answers if m.gap is None or m.gap.fraction <= most_gap]
    if answers and not within:
        least = min((m.gap for m in answers if m.gap), key=lambda gap: gap.fraction)
        raise ConfigError(
            f"`--max-loss-percent` ({100 * most_gap:g}) is below its price, {least}; raise it, or "
            "leave it out"
        )
    return within


def codec_limit(config: Config) -> CodecLimit:
    """Return the limit of codecs: the configured one, or `safe` where none is set."""
    limit = config.plan.codecs
    return CodecLimit.SAFE if limit is CodecLimit.NONE else limit


def num_searches(config: Config) -> int:
    """Return how many searches there are, each of the options' seconds: without islands four."""
    return 4 + len(tuple(island_groups(cluster_from(config), most=_most_islands())))


def _most_islands() -> int:
    return max(max(size.by_islands) for size in published_sizes())


def _check(config: Config, options: SearchOptions) -> None:
    comm = config.comm
    given = (
        ("outer.islands", config.outer.islands, 0),
        ("quorum.server", config.quorum.server, ""),
        ("plan.boundaries", config.plan.boundaries, None),
        ("comm.boundary", comm.boundary, CodecKind.NONE),
        ("comm.gradients", comm.gradients, CodecKind.NONE),
        ("model.bottlenecks", bottlenecks_of(config.model), ()),
        ("--outer", options.outer, OuterQuestion.NONE),
    )
    for name, value, default in given:
        if value != default:
            raise ConfigError(
                f"`{name}` ({value}) must be left out with `--objective loss`, which compares all "
                "kinds of compression"
            )


class _Study:
    """The searches of all methods; each yields what it finds, or raises why it finds nothing."""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        options: SearchOptions,
        most_gap: float,
        observe: Callable[[int], None],
        measuring: Callable[[str], None] | None,
    ) -> None:
        self._limit = codec_limit(config)
        self._config = replace(config, plan=replace(config.plan, codecs=CodecLimit.NONE))
        self._cluster, self._options, self._most_gap = cluster, options, most_gap
        self._observe, self._measuring = observe, measuring
        self._plans: list[Plan] = []
        self.num_valued = 0

    @cached_property
    def _query(self) -> Query:
        """The configuration with the counted costs of its devices."""
        *_, (costed, _) = machine_costs(self._config, self._cluster, observe=self._measuring)
        return Query(config=costed, cluster=self._cluster)

    def uncompressed(self) -> Iterator[Method]:
        yield self._remembered(self._proposed("uncompressed", self._config))

    def codecs(self) -> Iterator[Method]:
        yield self._remembered(self._proposed("codecs", self._limited(self._config, self._limit)))

    def _remembered(self, method: Method) -> Method:
        """Note the plan of a method, at whose boundaries ranks are tried as well."""
        self._plans.append(method.plan)
        return method

    def rank(self) -> Iterator[Method]:
        yield self._narrow("rank", CodecLimit.NONE)

    def rank_and_codecs(self) -> Iterator[Method]:
        yield self._narrow("rank and codecs", self._limit)

    def islands(self) -> Iterator[Method]:
        """Yield the outer loop that reaches the loss first, for each number of islands."""
        steps = self._config.train.steps
        every = meeting_every(steps)
        if every is None:
            raise ConfigError(f"`train.steps` ({steps}) must be {COVERED_STEPS}")
        groups = tuple(island_groups(self._cluster, most=_most_islands()))
        if not groups:
            raise ConfigError(f"`plan.cluster` ({self._cluster.name!r}) has no room for islands")
        refusal: UserError | None = None
        num_found = 0
        for devices in groups:
            try:
                yield self._of_islands(devices, every=every)
                num_found += 1
            except UserError as error:
                refusal = refusal or error
        if refusal is not None and not num_found:
            raise refusal

    def _narrowed(self, narrow: Bottlenecks) -> Config:
        """Return the configuration with bottlenecks."""
        if not isinstance(self._config.model, GptConfig):
            raise ConfigError("`model.bottlenecks` is a field of GPTs alone")
        if not narrow:
            raise ConfigError("`model.num_layers` (1) must be at least 2 to have a boundary")
        config = replace(self._config, model=replace(self._config.model, bottlenecks=narrow))
        check_settings(config)
        return config

    def _proposed(self, name: str, config: Config) -> Method:
        before, of_rank = self.num_valued, rank_gap(config.model)
        fraction = 0.0 if of_rank is None else of_rank.fraction
        proposal = propose(
            config,
            self._options,
            observe=lambda number: self._observe(before + number),
            measuring=self._measuring,
            price=lambda codecs: self._factor(fraction + codec_gap(codecs).fraction),
        )
        self.num_valued += proposal.num_valued
        codecs = None if proposal.codecs is None else proposal.codecs.codecs
        gaps = [
            *([] if of_rank is None else [of_rank]),
            *([codec_gap(codecs)] if codecs is not None and codecs != NO_CODECS else []),
        ]
        gap = max(gaps, key=lambda gap: gap.fraction, default=None)
        total = sum(gap.fraction for gap in gaps)
        return Method(
            name=name,
            plan=proposal.plan,
            cluster=proposal.cluster,
            step_s=proposal.step_s,
            compute_factor=self._factor(total),
            gap=gap and replace(gap, fraction=total),
            proposal=proposal,
        )

    def _narrow(self, name: str, limit: CodecLimit) -> Method:
        """Return the best of a search for narrow places between regions, and of narrow plans.

        The plans are those found before, and by this search, with ranks where these pay.
        """
        config = self._narrowed(between_regions(self._query))
        searched = self._of_ranks(name, self._limited(config, limit))
        trials = [
            (choice, plan)
            for plan in (*self._plans, searched.plan)
            if (choice := self._ranks(plan, limit)) is not None
        ]
        methods = [searched]
        if trials:
            choice, plan = min(trials, key=lambda trial: trial[0].equal_loss_s)
            config = self._limited(self._narrowed(choice.bottlenecks), limit)
            section = as_section(config.plan, plan, self._cluster)
            config = config if section is None else replace(config, plan=section)
            methods.append(self._of_ranks(name, config))
        return min(methods, key=lambda method: method.equal_loss_s)

    def _limited(self, config: Config, limit: CodecLimit) -> Config:
        return replace(config, plan=replace(config.plan, codecs=limit))

    def _ranks(self, plan: Plan, limit: CodecLimit) -> RankChoice | None:
        return choose_ranks(self._query, plan, limit, factor=self._factor, most_gap=self._most_gap)

    def _of_ranks(self, name: str, config: Config) -> Method:
        places = list(map(list, bottlenecks_of(config.model)))
        return replace(self._proposed(name, config), settings=(f"model.bottlenecks={places}",))

    def _factor(self, gap: float) -> float:
        """Return the factor on compute that makes up for a gap; of none the speed is not needed."""
        return compute_factor(gap, num_parameters=self._num_parameters) if gap else 1.0

    @cached_property
    def _num_parameters(self) -> float:
        _, conditions = self._query.task(Remat.NONE)
        return num_parameters(conditions)

    def _of_islands(self, devices: tuple[tuple[int, ...], ...], *, every: int) -> Method:
        before = self.num_valued
        result = self._island_plan(devices, lambda number: self._observe(before + number))
        self.num_valued += result.num_valued
        choices = outer_choices(result.plan, result.conditions, islands=result.islands, every=every)
        best = min(choices, key=lambda choice: choice.equal_loss_s)
        assert best.outer is not None, best
        check_plan_fits(replace(self._config, outer=best.outer), result.plan)
        return Method(
            name=choice_name(best),
            plan=result.plan,
            cluster=result.conditions.cluster,
            step_s=best.step_s,
            settings=_outer_settings(best.outer),
            compute_factor=best.compute_factor,
            gap=outer_gap(best.outer.islands, num_parameters=num_parameters(result.conditions)),
        )

    def _island_plan(
        self, devices: tuple[tuple[int, ...], ...], observe: Callable[[int], None]
    ) -> IslandPlan:
        seconds = self._options.seconds(len(self._cluster))
        refusal: UserError | None = None
        for costed, _ in machine_costs(self._config, self._cluster, observe=self._measuring):
            try:
                return island_plan(
                    costed, self._cluster, devices, self._options, seconds=seconds, observe=observe
                )
            except UserError as error:
                refusal = refusal or error
        assert refusal is not None, self._config
        raise refusal


def _outer_settings(outer: OuterConfig) -> tuple[str, ...]:
    """Return the settings of an outer loop, as far as they are no defaults."""
    default = OuterConfig(islands=outer.islands)
    names = ("every", "delay", "local_fraction", "codec")
    changed = [name for name in names if getattr(outer, name) != getattr(default, name)]
    return (
        f"outer.islands={outer.islands}",
        *(f"outer.{name}={getattr(outer, name)}" for name in changed),
    )
