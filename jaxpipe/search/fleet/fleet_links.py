"""The network of a fleet: hosts, regions and their links, as arrays for thousands of devices."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetLinks:
    """Hosts and regions of a cluster by number, and the links between them.

    `host[device]` and `region[host]` are numbers. The links of a region to another, to itself
    between two hosts, and inside a host are those of the first devices that have one: latency in
    seconds, and seconds per byte of one transfer on an idle network. NICs are in bytes/s, and so
    are the trunks from a region to another, infinite where there is none.
    """

    cluster: Cluster
    host: np.ndarray
    region: np.ndarray
    egress: np.ndarray
    ingress: np.ndarray
    trunk: np.ndarray
    latency_s: np.ndarray
    byte_s: np.ndarray
    host_latency_s: np.ndarray
    host_byte_s: np.ndarray

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return len(self.region)

    @property
    def num_regions(self) -> int:
        """The number of regions."""
        return len(self.latency_s)


def fleet_links(cluster: Cluster, *, nic_efficiency: float = 1.0) -> FleetLinks:
    """Return the network; of the NICs `nic_efficiency` is usable.

    Cost: devices times hosts, and the square of the regions.
    """
    host = np.array(cluster.host_of)
    names = {name: number for number, name in enumerate(cluster.regions)}
    region = np.array([names[each.region] for each in cluster.hosts])
    # The first devices of each host, and of the first two hosts of each region.
    members = [np.flatnonzero(host == number)[:2] for number in range(len(cluster.hosts))]
    # A host without a device is in no plan.
    assert all(map(len, members)), cluster.name
    firsts = [
        [int(members[number][0]) for number in np.flatnonzero(region == each)]
        for each in range(len(names))
    ]
    pairs = [
        [(a[0], b[0]) if a is not b else (a[0], a[min(1, len(a) - 1)]) for b in firsts]
        for a in firsts
    ]
    trunk = np.full((len(names), len(names)), np.inf)
    for shared in cluster.trunks:
        trunk[names[shared.source], names[shared.destination]] = shared.bytes_per_s
    inside = [(int(each[0]), int(each[-1])) for each in members]
    return FleetLinks(
        cluster=cluster,
        host=host,
        region=region,
        egress=nic_efficiency * np.array([each.egress_bytes_per_s for each in cluster.hosts]),
        ingress=nic_efficiency * np.array([each.ingress_bytes_per_s for each in cluster.hosts]),
        trunk=trunk,
        latency_s=np.array([[cluster.latency_s[pair] for pair in row] for row in pairs]),
        byte_s=np.array([[1 / cluster.alone_bytes_per_s[pair] for pair in row] for row in pairs]),
        host_latency_s=np.array([cluster.latency_s[pair] for pair in inside]),
        host_byte_s=np.array([1 / cluster.alone_bytes_per_s[pair] for pair in inside]),
    )
