"""The plan of a run for the devices that are there.

::

    all devices of the configured plan     that plan
    fewer, or others as well               the fastest plan on those that are there, in a file
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.config import Config, cluster_from, load_config
from jaxpipe.errors import ConfigError
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import Plan, ResolvedPlan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.drift.new_plan import Adopted
from jaxpipe.run.supervise.next_plan import NextPlan, next_plan
from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan of an attempt, and the names of its devices and hosts.

    `settings` are those of the configuration without it; `following` is the plan that takes the
    place of the configured one, if one does. `groups` are the names of the devices of each rank,
    `left_out` of those that seem to be gone.
    """

    settings: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    hosts: tuple[str, ...]
    shape: str
    cluster: Cluster
    outer: OuterConfig
    left_out: frozenset[str] = frozenset()
    following: NextPlan | None = None

    @property
    def used(self) -> tuple[str, ...]:
        """Each host with a rank, in the order of ranks."""
        return tuple(dict.fromkeys(self.hosts))

    def settings_with(self, file: Path) -> tuple[str, ...]:
        """Return the settings of an attempt with this plan; one of its own is written to the file.

        Raises:
            OSError: the file cannot be written.
        """
        if self.following is None:
            return self.settings
        file.parent.mkdir(parents=True, exist_ok=True)  # no attempt may have come so far
        own = self.following.write(self.cluster, file, before=self.outer)
        return (*self.settings, *own)

    def __str__(self) -> str:
        """Return its shape, its hosts, and what had to change, for example on one line.

        `3 stages x 1 replica on a, b, c, without a:1; changed: no `warmup``
        """
        without = f", without {', '.join(sorted(self.left_out))}" if self.left_out else ""
        changes = () if self.following is None else self.following.changes
        changed = f"; changed: {', '.join(changes)}" if changes else ""
        return f"{self.shape} on {', '.join(self.used)}{without}{changed}"


@dataclass(slots=True, kw_only=True)
class Planner:
    """Plans for a configuration file with some settings.

    The file and that of the cluster are read each time: a machine may be added to the cluster while
    the run continues. `adopted` is a new plan for `adopted_for`, the hosts that were there when the
    run has adopted it.
    """

    config: Path
    settings: tuple[str, ...]
    adopted: Adopted | None = None
    adopted_for: frozenset[str] | None = None

    def adopt(self, adopted: Adopted, *, hosts: Sequence[str] | None) -> None:
        """Take a new plan for the configured one as long as the same hosts are there.

        With others, links are again as they were planned: nobody has measured all of theirs.
        """
        self.adopted = adopted
        self.adopted_for = None if hosts is None else frozenset(hosts)

    def configured(self) -> Planned:
        """Return the configured plan.

        Raises:
            UserError: the configuration is wrong.
        """
        config = load_config(self.config, self.settings, notice=None)
        cluster = cluster_from(config)
        return _planned(self.settings, plan_from(config, cluster), cluster, config.outer)

    def plan_for(
        self, hosts: Sequence[str] | None, *, left_out: frozenset[str] = frozenset()
    ) -> Planned | None:
        """Return the plan for the devices of these hosts, by default of all that it has.

        Devices that are `left_out` get no rank. A host of the configured plan has the devices that
        this plan uses, another one all that it has in the cluster. None if no plan fits.

        Raises:
            UserError: the configuration is wrong, or the cluster has no such host.
        """
        is_same = hosts is None or self.adopted_for == frozenset(hosts)
        settings = self.settings
        if self.adopted is not None and is_same:
            settings = (*settings, *self.adopted.settings)
        config = load_config(self.config, settings, notice=None)
        cluster = cluster_from(config)
        plan = plan_from(config, cluster)
        planned = _planned(settings, plan, cluster, config.outer)
        if not left_out and (hosts is None or set(hosts) == set(planned.used)):
            return planned
        devices = _devices(config, plan, cluster, hosts)
        remaining = [device for device in devices if cluster.devices[device].name not in left_out]
        following = next_plan(config, plan, remaining, cluster=cluster, moves=False)
        if following is None:
            return None
        return _planned(
            settings,
            following.plan,
            cluster,
            config.outer,
            left_out=left_out,
            following=following,
        )


def _devices(
    config: Config, plan: Plan, cluster: Cluster, hosts: Sequence[str] | None
) -> tuple[int, ...]:
    """Return the devices of some hosts: those of the configured plan come first.

    Raises:
        ConfigError: the cluster has no such host.
    """
    used = tuple(device for group in plan.groups for device in group)
    if hosts is None:
        return used
    for host in hosts:
        if host not in {device.host for device in cluster.devices}:
            known = ", ".join(host.name for host in cluster.hosts)
            raise ConfigError(
                f"a host that joins is one of the cluster: {host!r:.80} is not in "
                f"`plan.cluster` {config.plan.cluster} ({known:.200}); add it to the file, with "
                "its links, or give its name there with --host"
            )
    planned_hosts = {cluster.devices[device].host for device in used}
    others = (n for n, device in enumerate(cluster.devices) if device.host not in planned_hosts)
    return tuple(device for device in (*used, *others) if cluster.devices[device].host in hosts)


def _planned(
    settings: tuple[str, ...],
    plan: Plan,
    cluster: Cluster,
    outer: OuterConfig,
    *,
    left_out: frozenset[str] = frozenset(),
    following: NextPlan | None = None,
) -> Planned:
    return Planned(
        settings=settings,
        groups=ResolvedPlan.of(plan, cluster).groups,
        hosts=tuple(cluster.devices[group[0]].host for group in plan.groups),
        shape=plan.shape,
        cluster=cluster,
        outer=outer,
        left_out=left_out,
        following=following,
    )
