"""How long rings take that go round at once, in closed form: for what happens a million times."""

from collections import Counter
from collections.abc import Sequence

from topo import Cluster


def ring_step_s(
    cluster: Cluster,
    rings: Sequence[Sequence[int]],
    part_bytes: float,
    *,
    nic_efficiency: float,
) -> float:
    """Return the seconds in which every device passes a part to the next one of its ring.

    All rings (of devices) move at once and share the NICs; the slowest link counts.

    >>> import topo
    >>> pair = topo.load("homogeneous:hosts=2,delay_ms=500,bandwidth_gbps=8")
    >>> ring_step_s(pair, [(0, 1)], 1e9, nic_efficiency=1.0)
    1.5
    """
    host_of = cluster.host_of
    hops = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    leaving = Counter(host_of[a] for a, b in hops if host_of[a] != host_of[b])

    def rate(a: int, b: int) -> float:
        alone = float(cluster.alone_bytes_per_s[a, b])
        if host_of[a] == host_of[b]:
            return alone
        nic = nic_efficiency * cluster.hosts[host_of[a]].egress_bytes_per_s
        return min(alone, nic / leaving[host_of[a]])

    return max(
        (float(cluster.latency_s[a, b]) + part_bytes / rate(a, b) for a, b in hops if a != b),
        default=0.0,
    )
