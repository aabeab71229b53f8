"""The predicted step of a configuration, before it runs: seconds, what binds, links and memory."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from jaxpipe.config import Config, cluster_from
from jaxpipe.plan import Plan, check_islands, islands_of
from jaxpipe.propose.conditions import conditions_of, trained_model
from jaxpipe.propose.machine_costs import machine_costs
from jaxpipe.propose.resolve import Resolution, resolve
from jaxpipe.run.forecast.compressed_messages import Compressed, compressions
from jaxpipe.run.forecast.plan_memory import RankMemory, plan_memory
from jaxpipe.simulate import Conditions, StepBreakdown, plan_step, step_breakdown
from jaxpipe.simulate.link_load import LinkLoad, link_loads
from jaxpipe.simulate.outer_step import OuterTimes, outer_times
from jaxpipe.topo import Cluster
from jaxpipe.trace import Spent, StepAccount, account, side_by_side, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What limits a step: the `share` of it in which a rank computes, or a link is occupied."""

    kind: str
    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The simulated step of a configured run.

    `account` has the seconds of each rank by cause; `links` the load between regions, or between
    devices where all are in one region, the busiest first; `memory` what each rank needs. With an
    outer loop these are of an inner step of all islands, side by side, and `split` is that of the
    slowest one; `outer_s` is what the outer steps add to a step on average.
    """

    resolution: Resolution
    cluster: Cluster
    tokens: int
    split: StepBreakdown
    account: StepAccount
    bubble: float
    links: tuple[LinkLoad, ...]
    memory: tuple[RankMemory, ...]
    compressed: tuple[Compressed, ...]
    outer_s: float = 0.0

    @property
    def plan(self) -> Plan:
        """The plan that is simulated."""
        return self.resolution.plan

    @property
    def step_s(self) -> float:
        """The seconds of a step; with an outer loop, on average."""
        return self.split.step_s + self.outer_s

    @property
    def tokens_per_s(self) -> float:
        """The throughput of training."""
        return self.tokens / self.step_s

    @property
    def binding(self) -> Binding:
        """What limits the step most: the compute of a rank, or a link."""
        busiest = max(self.account.ranks, key=lambda rank: _computed_s(rank.spent_s))
        stages = ", ".join(map(str, self.plan.stages(busiest.rank)))
        device = self.cluster.devices[self.plan.device(busiest.rank)].name
        compute = Binding(
            kind="compute",
            name=f"stage {stages}, rank {busiest.rank} on {device}",
            share=_computed_s(busiest.spent_s) / self.account.seconds,
        )
        links = (
            Binding(kind="link", name=f"{link.source} -> {link.to}", share=link.share)
            for link in self.links[:1]
        )
        return max((compute, *links), key=lambda binding: binding.share)


def predict(config: Config, *, observe: Callable[[str], None] | None = None) -> Prediction:
    """Return the simulated step of a configuration, and the plan that it takes.

    With `observe`, the model is measured on this machine where that was not done before.

    Raises:
        UserError: the configuration has no plan, or the speed of a device is unknown.
    """
    cluster = cluster_from(config)
    resolution = resolve(config, cluster, observe=observe)
    plan = resolution.plan
    costed, lines = next(machine_costs(resolution.costed, cluster, observe=observe))
    conditions = conditions_of(costed, cluster, remat=plan.remat)
    parts, times = _parts(config, plan, conditions)
    splits = [step_breakdown(part, conditions) for part in parts]
    slowest = max(splits, key=lambda split: split.step_s)
    split = replace(slowest, trace=side_by_side([split.trace for split in splits]))
    summary = summarise(split.trace)[0]
    loads = (
        link_loads(
            plan_step(part, conditions), step_s=split.step_s, names=_ends(part, plan, cluster)
        )
        for part in parts
    )
    return Prediction(
        resolution=replace(resolution, lines=tuple(dict.fromkeys((*resolution.lines, *lines)))),
        cluster=cluster,
        tokens=plan.batch * trained_model(config).sequence,
        split=split,
        account=account(split.trace)[0],
        bubble=summary.bubble or 0.0,
        links=_joined(chain.from_iterable(loads)),
        memory=plan_memory(config, plan, cluster),
        compressed=compressions(config, plan, conditions, times),
        outer_s=0.0 if times is None else times.exposed_s(config.outer) / config.outer.every,
    )


def _parts(
    config: Config, plan: Plan, conditions: Conditions
) -> tuple[tuple[Plan, ...], OuterTimes | None]:
    """Return what is in step: the plan, or those of its islands, and the times of outer steps."""
    outer = config.outer
    if not outer.is_on:
        return (plan,), None
    check_islands(plan, num_islands=outer.islands)
    islands = islands_of(plan, num_islands=outer.islands)
    return tuple(island.plan for island in islands), outer_times(plan, conditions, outer)


def _joined(loads: Iterable[LinkLoad]) -> tuple[LinkLoad, ...]:
    """Return the loads of islands together: those between the same ends as one."""
    by_ends: dict[tuple[str, str], LinkLoad] = {}
    for load in loads:
        ends = (load.source, load.to)
        by_ends[ends] = by_ends[ends].beside(load) if ends in by_ends else load
    return tuple(sorted(by_ends.values(), key=lambda load: (-load.share, load.source, load.to)))


def _ends(part: Plan, whole: Plan, cluster: Cluster) -> dict[int, str]:
    """Return the end of links that each rank of a part is.

    It is its region, or its device if all of the whole plan are in one region.
    """
    regions = {cluster.devices[group[0]].region for group in whole.groups}
    devices = {rank: cluster.devices[part.device(rank)] for rank in range(part.num_ranks)}
    is_one_region = len(regions) == 1
    return {
        rank: device.name if is_one_region else device.region for rank, device in devices.items()
    }


def _computed_s(spent_s: Mapping[Spent, float]) -> float:
    return spent_s[Spent.COMPUTE] + spent_s[Spent.UPDATE]
