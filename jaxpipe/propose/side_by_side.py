"""What a plan owes to NICs that the cluster file does not state: messages that go side by side."""

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from jaxpipe.network.open_links import crosses_hosts
from jaxpipe.plan import Plan
from jaxpipe.schedule import Bucket
from jaxpipe.simulate import Conditions, plan_step

_FASTER = 2.0
"""All messages of a host together, over its fastest link: more is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """A host without a NIC, the devices to which it sends gradients at once, and how fast."""

    host: str
    num_peers: int
    bytes_per_s: float


def side_by_side(plan: Plan, conditions: Conditions) -> SideBySide | None:
    """Return the host that sends fastest of those without a NIC in the cluster file.

    None if none of them sends more than twice as fast as over its fastest link: then hardly more
    is assumed of its NIC than that link says.
    """
    cluster = conditions.cluster
    if all(host.egress_bytes_per_s < inf for host in cluster.hosts):
        return None
    job, trunks = plan_step(plan, conditions), cluster.trunk_numbers
    pairs = {
        (job.device(each.source), job.device(each.destination))
        for bucket, collectives in job.collectives.items()
        for collective in collectives
        for each in collective
        if bucket is not Bucket.SCALARS  # some bytes
    }
    rates: defaultdict[int, list[float]] = defaultdict(list)
    for source, destination in sorted(pairs):
        host = cluster.host_of[source]
        # What leaves for a trunk has a limit that the file states.
        regions = cluster.devices[source].region, cluster.devices[destination].region
        is_open = cluster.hosts[host].egress_bytes_per_s == inf and regions not in trunks
        if is_open and crosses_hosts(cluster, (source, destination)):
            rates[host].append(float(cluster.alone_bytes_per_s[source, destination]))
    found = [
        SideBySide(host=cluster.hosts[host].name, num_peers=len(each), bytes_per_s=sum(each))
        for host, each in rates.items()
        if sum(each) > _FASTER * max(each)
    ]
    return max(found, key=lambda each: each.bytes_per_s, default=None)
