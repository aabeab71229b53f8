"""Judge of links: which ones are slower than planned, and have been for a while.

The planned seconds of a pair of hosts, for the bytes and the periods that were measured::

    planned_s = bytes / bandwidth + periods * (latency + 20 ms)

The bandwidth is the least of the plan's link and of the share of each NIC, if all ranks that have
used the NIC did so at once. The 20 ms are for receivers that notice a message late: on a busy
machine that takes longer than the message.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxpipe.runtime.hooks import MeasuredPairs
from jaxpipe.topo import Cluster
from jaxpipe.trace import PairUse

_NOTICED_S = 0.02

HostPair = tuple[int, int]
"""The sending and the receiving host, by their positions in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """The link from one host to another, `slowdown` times slower than planned since a step."""

    source: int
    to: int
    planned_bytes_per_s: float
    slowdown: float
    since_step: int

    @property
    def measured_bytes_per_s(self) -> float:
        """The bandwidth that the measured seconds amount to, latencies aside."""
        return self.planned_bytes_per_s / self.slowdown


class LinkJudge:
    """Judges one report of links after the other; a link is named once.

    `devices` are those of the ranks. A link is slow if its messages took `factor` times the planned
    seconds in all reports of at least `num_steps` steps in a row. Links inside a host are the
    machine's own, and not judged.
    """

    def __init__(
        self, cluster: Cluster, devices: Sequence[int], *, factor: float, num_steps: int
    ) -> None:
        self._cluster, self._devices = cluster, tuple(devices)
        self._factor, self._num_steps = factor, num_steps
        self._slow_since: dict[HostPair, int] = {}
        self._named: set[HostPair] = set()
        self._used: set[HostPair] = set()

    @property
    def healthy(self) -> frozenset[HostPair]:
        """The links that were used, and are not slow."""
        return frozenset(self._used - self._named - set(self._slow_since))

    def judge(self, measured: MeasuredPairs) -> tuple[SlowLink, ...]:
        """Return the links that have been slow for long enough, and were not named before."""
        whole = [use for use in measured.pairs if use.traffic is None and use.seconds > 0]
        shares = self._shares(whole)
        by_hosts: defaultdict[HostPair, list[PairUse]] = defaultdict(list)
        for use in whole:
            by_hosts[self._hosts(use)].append(use)
        found: list[SlowLink] = []
        self._used |= by_hosts.keys()
        for hosts, uses in by_hosts.items():
            slow = self._slow(hosts, uses, shares.get(hosts, float("inf")), measured)
            if slow is not None and measured.last_step - slow.since_step + 1 >= self._num_steps:
                found.append(slow)
                self._named.add(hosts)
        return tuple(found)

    def _slow(
        self, hosts: HostPair, uses: Sequence[PairUse], share: float, measured: MeasuredPairs
    ) -> SlowLink | None:
        if hosts[0] == hosts[1] or hosts in self._named:
            return None
        links = [self._link(use) for use in uses]
        wire_s = sum(
            use.timed_bytes / min(bandwidth, share)
            for use, (bandwidth, _) in zip(uses, links, strict=True)
        )
        latency_s = sum(
            use.num_periods * latency for use, (_, latency) in zip(uses, links, strict=True)
        )
        seconds = sum(use.seconds for use in uses)
        planned_s = wire_s + latency_s + _NOTICED_S * sum(use.num_periods for use in uses)
        if seconds <= self._factor * planned_s or not wire_s:
            self._slow_since.pop(hosts, None)
            return None
        return SlowLink(
            source=hosts[0],
            to=hosts[1],
            planned_bytes_per_s=min(bandwidth for bandwidth, _ in links),
            slowdown=(seconds - latency_s) / wire_s,
            since_step=self._slow_since.setdefault(hosts, measured.first_step),
        )

    def _shares(self, uses: Sequence[PairUse]) -> dict[HostPair, float]:
        """Return what NICs and trunks leave to each pair of hosts if all in use send at once."""
        hosts, trunks = self._cluster.hosts, self._cluster.trunk_numbers
        far = [pair for use in uses if (pair := self._hosts(use))[0] != pair[1]]
        out, into = Counter(a for a, _ in far), Counter(b for _, b in far)
        across = Counter((hosts[a].region, hosts[b].region) for a, b in far)

        def share(a: int, b: int) -> float:
            regions = hosts[a].region, hosts[b].region
            limits = [hosts[a].egress_bytes_per_s / out[a], hosts[b].ingress_bytes_per_s / into[b]]
            if regions in trunks:
                limits.append(self._cluster.trunks[trunks[regions]].bytes_per_s / across[regions])
            return min(limits)

        return {(a, b): share(a, b) for a, b in far}

    def _hosts(self, use: PairUse) -> HostPair:
        of = self._cluster.host_of
        return of[self._devices[use.source]], of[self._devices[use.to]]

    def _link(self, use: PairUse) -> tuple[float, float]:
        """Return the planned bandwidth and latency between two ranks."""
        link = self._cluster.link(self._devices[use.source], self._devices[use.to])
        return link.bandwidth_bytes_per_s, link.latency_s


def corrected(
    cluster: Cluster, slow: Sequence[SlowLink], *, healthy: Collection[HostPair] = ()
) -> Cluster:
    """Return the cluster with the measured bandwidth of slow links; latencies stay.

    A link between regions that was not measured is assumed to be as slow as the slowest measured
    one between them, since they mostly share a line; `healthy` ones are as planned.

    >>> from jaxpipe import topo
    >>> link = SlowLink(source=0, to=2, planned_bytes_per_s=1.4e8, slowdown=10.0, since_step=1)
    >>> found = corrected(topo.load("two-region"), [link], healthy=[(1, 3)])
    >>> [round(float(each)) for each in found.bandwidth_bytes_per_s[0:2, 2:4].flatten()]
    [14000000, 14000000, 14000000, 140000000]
    """
    hosts, host_of = cluster.hosts, np.array(cluster.host_of)
    slowdown = np.ones((len(hosts), len(hosts)))
    regions = np.array([host.region for host in hosts])
    for each in slow:
        source, to = regions[each.source], regions[each.to]
        if source != to:
            block = np.ix_(regions == source, regions == to)
            slowdown[block] = np.maximum(slowdown[block], each.slowdown)
    for pair in healthy:
        slowdown[pair] = 1.0
    for each in slow:
        slowdown[each.source, each.to] = each.slowdown
    of_devices = slowdown[np.ix_(host_of, host_of)]
    return replace(
        cluster,
        name="measured",  # that of a generated cluster cannot stand in a file
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s / of_devices,
        alone_bytes_per_s=cluster.alone_bytes_per_s / of_devices,
    )
