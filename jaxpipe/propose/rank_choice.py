"""How many numbers of a token each boundary of a plan keeps, chosen by the time to a loss.

::

    boundary    1-2     0-1    2-3       slowest first: for each rank that was measured, narrow at
    message     80 ms   9 ms   1 ms      one boundary, at two, at four ... and at all of them
    numbers     4       128    128       those that pay have the rank; the others keep all numbers

The price in loss is that of the narrowest boundary (`jaxpipe.propose.loss_prices`), so a wider one
beside it would gain nothing. Codecs are chosen for each trial, by the same time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from jaxpipe.collective import CodecLimit, Codecs
from jaxpipe.errors import UserError
from jaxpipe.models import GptConfig
from jaxpipe.plan import Plan, PlanConfig
from jaxpipe.propose.boundary_codecs import ENOUGH, boundary_messages
from jaxpipe.propose.codec_choice import choose_codecs
from jaxpipe.propose.loss_prices import codec_gap, rank_gap, rank_ratios
from jaxpipe.propose.query import Query
from jaxpipe.schedule import Remat, ScheduleKind
from jaxpipe.search.build_plan import lacking_bytes
from jaxpipe.simulate import Conditions
from jaxpipe.topo import Cluster

Bottlenecks = tuple[tuple[int, int], ...]

NARROWER = 32
"""The numbers of a token over those that a boundary between regions keeps in a first search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChoice:
    """Places of a model that keep few numbers, and the seconds of a plan with them.

    `equal_loss_s` are those in which it advances as far as an uncompressed step does.
    """

    bottlenecks: Bottlenecks
    step_s: float
    equal_loss_s: float


def between_regions(query: Query) -> Bottlenecks:
    """Return where a model is narrow: where it is cut into as many parts as there are regions."""
    task, _ = query.task(query.config.train.remat or Remat.NONE)
    parts = min(max(2, len(query.cluster.regions)), task.num_layers)
    cut = task.balanced_cut((1.0,) * parts)
    rank = max(1, query.config.model.dim // NARROWER)
    return tuple((after, rank) for after in tuple(accumulate(cut))[:-1])


def choose_ranks(
    query: Query,
    plan: Plan,
    limit: CodecLimit,
    *,
    factor: Callable[[float], float],
    most_gap: float,
) -> RankChoice | None:
    """Return the fewest, widest bottlenecks within 1 % of those that are first to the loss.

    Codecs are within the limit; `factor` returns the steps that make up for a gap. Gaps are at most
    `most_gap`, as a fraction of the loss. None where no boundary can be narrow: of a model that has
    no bottlenecks, of replicas with unlike cuts, of a pipeline in chunks.

    Cost: for each measured rank and number of boundaries, a choice of codecs.
    """
    choices = tuple(_choices(query, plan, limit, factor, most_gap))
    if not choices:
        return None
    enough_s = ENOUGH * min(choice.equal_loss_s for choice in choices)
    return next(choice for choice in choices if choice.equal_loss_s <= enough_s)


def _choices(
    query: Query,
    plan: Plan,
    limit: CodecLimit,
    factor: Callable[[float], float],
    most_gap: float,
) -> Iterator[RankChoice]:
    """Yield a choice for each rank and each number of boundaries that can run, the widest first."""
    model = query.config.model
    if not isinstance(model, GptConfig) or not plan.has_equal_cuts or plan.num_chunks > 1:
        return
    remat = plan.remat or Remat.NONE
    _, plain = query.task(remat)
    for bottlenecks in _bottlenecks(plan, plain, model):
        narrow = replace(model, bottlenecks=bottlenecks)
        gap = rank_gap(narrow)
        assert gap is not None, bottlenecks
        if gap.fraction > most_gap:
            continue
        of_narrow = replace(query, config=replace(query.config, model=narrow))
        try:
            task, conditions = of_narrow.task(remat)
        except UserError:
            continue
        if lacking_bytes(task, plan):
            continue

        def price(codecs: Codecs, fraction: float = gap.fraction) -> float:
            return factor(fraction + codec_gap(codecs).fraction)

        choice = choose_codecs(plan, conditions, limit, price=price)
        yield RankChoice(
            bottlenecks=bottlenecks,
            step_s=choice.step_s,
            equal_loss_s=price(choice.codecs) * choice.step_s,
        )


def _bottlenecks(plan: Plan, conditions: Conditions, model: GptConfig) -> Iterator[Bottlenecks]:
    """Yield the places of each rank, at the slowest boundaries: at few of them first."""
    slowest: dict[int, float] = {}
    for message_s, _, stage in boundary_messages(plan, conditions):
        slowest[stage] = max(message_s, slowest.get(stage, 0.0))
    order = sorted(slowest, key=lambda stage: -slowest[stage])
    starts = [sum(plan.cut[: stage + 1]) for stage in order]
    ranks = [model.dim // ratio for ratio in rank_ratios(model) if 1 < ratio <= model.dim]
    for rank in ranks:
        for count in _counts(len(starts)):
            yield tuple((after, rank) for after in sorted(starts[:count]))


def _counts(num_boundaries: int) -> tuple[int, ...]:
    """Return 1, 2, 4 ... and all boundaries.

    >>> _counts(3), _counts(0)
    ((1, 2, 3), ())
    """
    return tuple(
        n for n in range(1, num_boundaries + 1) if n.bit_count() == 1 or n == num_boundaries
    )


def as_section(section: PlanConfig, plan: Plan, cluster: Cluster) -> PlanConfig | None:
    """Return a section that leaves only the all-reduce and the codecs of a plan free.

    None for a plan that a section cannot state: of unlike replicas, of ranks with several devices,
    with a custom schedule.
    """
    if not plan.is_even or plan.has_groups or not isinstance(plan.schedule, ScheduleKind):
        return None
    devices = (cluster.devices[device].name for row in plan.placement for device in row)
    return replace(
        section,
        devices=tuple(devices),
        stages=plan.num_stages,
        replicas=plan.num_replicas,
        microbatch=plan.microbatch,
        schedule=plan.schedule,
        cut=plan.cut,
        warmup=plan.warmup,
    )
