"""The predicted step of a configuration, before it runs: seconds, what binds, links and memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxpipe.config import Config, cluster_from
from jaxpipe.plan import Plan
from jaxpipe.propose.conditions import conditions_of, trained_model
from jaxpipe.propose.machine_costs import machine_costs
from jaxpipe.propose.resolve import Resolution, resolve
from jaxpipe.run.forecast.plan_memory import RankMemory, plan_memory
from jaxpipe.simulate import StepBreakdown, plan_step, step_breakdown
from jaxpipe.simulate.link_load import LinkLoad, link_loads
from jaxpipe.topo import Cluster
from jaxpipe.trace import Spent, StepAccount, account, summarise


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
    devices where all are in one region, the busiest first; `memory` what each rank needs.
    """

    resolution: Resolution
    cluster: Cluster
    tokens: int
    split: StepBreakdown
    account: StepAccount
    bubble: float
    links: tuple[LinkLoad, ...]
    memory: tuple[RankMemory, ...]

    @property
    def plan(self) -> Plan:
        """The plan that is simulated."""
        return self.resolution.plan

    @property
    def step_s(self) -> float:
        """The seconds of a step."""
        return self.split.step_s

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
    costed, _ = next(machine_costs(resolution.costed, cluster, observe=observe))
    conditions = conditions_of(costed, cluster, remat=plan.remat)
    split = step_breakdown(plan, conditions)
    summary = summarise(split.trace)[0]
    return Prediction(
        resolution=resolution,
        cluster=cluster,
        tokens=plan.batch * trained_model(config).sequence,
        split=split,
        account=account(split.trace)[0],
        bubble=summary.bubble or 0.0,
        links=link_loads(
            plan_step(plan, conditions), step_s=split.step_s, names=_ends(plan, cluster)
        ),
        memory=plan_memory(config, plan, cluster),
    )


def _ends(plan: Plan, cluster: Cluster) -> dict[int, str]:
    """Return the end of links that each rank is: its region, or its device if all are in one."""
    devices = {rank: cluster.devices[plan.device(rank)] for rank in range(plan.num_ranks)}
    is_one_region = len({device.region for device in devices.values()}) == 1
    return {
        rank: device.name if is_one_region else device.region for rank, device in devices.items()
    }


def _computed_s(spent_s: Mapping[Spent, float]) -> float:
    return spent_s[Spent.COMPUTE] + spent_s[Spent.UPDATE]
