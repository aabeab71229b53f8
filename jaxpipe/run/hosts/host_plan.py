"""The plan of a run for the hosts that are there.

::

    all hosts of the configured plan     that plan
    fewer, or others as well             the fastest plan on the devices of those that are there
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.config import Config, cluster_from, load_config
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.drift.adopt import Adopted
from jaxpipe.run.smaller_plan import plan_settings, within
from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """A plan as settings of a configuration, and the host of each rank."""

    settings: tuple[str, ...]
    hosts: tuple[str, ...]
    shape: str

    @property
    def used(self) -> tuple[str, ...]:
        """Each host with a rank, in the order of ranks.

        >>> HostPlan(settings=(), hosts=("a", "b", "a"), shape="").used
        ('a', 'b')
        """
        return tuple(dict.fromkeys(self.hosts))

    def __str__(self) -> str:
        """Return its shape and its hosts.

        >>> print(HostPlan(settings=(), hosts=("a", "b"), shape="2 stages x 1 replica"))
        2 stages x 1 replica on a, b
        """
        return f"{self.shape} on {', '.join(self.used)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans for a configuration file with some settings.

    The file and that of the cluster are read each time: a machine may be added to the cluster while
    the run continues. `adopted` are the settings of a new plan for `adopted_for`, the hosts that
    were there when the run has adopted it.
    """

    config: Path
    settings: tuple[str, ...]
    adopted: tuple[str, ...] | None = None
    adopted_for: frozenset[str] = frozenset()

    def with_adopted(self, adopted: Adopted, *, hosts: Sequence[str]) -> "Planner":
        """Return the planner that has a new plan as long as the same hosts are there.

        With others, links are again as they were planned: nobody has measured all of theirs.
        """
        settings = adopted.among(self.adopted or self.settings)
        return replace(self, adopted=settings, adopted_for=frozenset(hosts))

    def own(self) -> HostPlan:
        """Return the configured plan.

        Raises:
            UserError: the configuration is wrong.
        """
        config = load_config(self.config, self.settings, notice=None)
        cluster = cluster_from(config)
        return _host_plan(self.settings, plan_from(config, cluster), cluster)

    def plan_for(self, hosts: Sequence[str]) -> HostPlan | None:
        """Return the plan for the devices of these hosts; None if none fits.

        A host of the configured plan has the devices that this plan uses, another one all that it
        has in the cluster.

        Raises:
            UserError: the configuration is wrong, or the cluster has no such host.
        """
        if self.adopted is not None and self.adopted_for == set(hosts):
            return replace(self, settings=self.adopted).own()
        own = self.own()
        if set(hosts) == set(own.used):
            return own
        config = load_config(self.config, self.settings, notice=None)
        cluster = cluster_from(config)
        devices = _devices(config, cluster, hosts)
        found = within(config, num_ranks=len(devices), devices=devices, moves=False)
        if found is None:
            return None
        settings = plan_settings(found, self.settings, before=config, names_devices=True)
        made = plan_from(load_config(self.config, settings, notice=None), cluster)
        return _host_plan(settings, made, cluster)


def _devices(config: Config, cluster: Cluster, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the devices of some hosts: those of the configured plan come first.

    Raises:
        ConfigError: the cluster has no such host.
    """
    for host in hosts:
        if host not in {each.host for each in cluster.devices}:
            known = ", ".join(each.name for each in cluster.hosts)
            raise ConfigError(
                f"a host that joins is one of the cluster: {host!r:.80} is not in "
                f"`plan.cluster` {config.plan.cluster} ({known:.200}); add it to the file, with "
                "its links, or give its name there with --host"
            )
    plan = plan_from(config, cluster)
    used = [cluster.devices[device] for row in plan.placement for device in row]
    planned_hosts = {device.host for device in used}
    others = [device for device in cluster.devices if device.host not in planned_hosts]
    return tuple(device.name for device in (*used, *others) if device.host in hosts)


def _host_plan(settings: tuple[str, ...], plan: Plan, cluster: Cluster) -> HostPlan:
    hosts = tuple(cluster.devices[plan.device(rank)].host for rank in range(plan.num_ranks))
    return HostPlan(settings=settings, hosts=hosts, shape=plan.shape)
