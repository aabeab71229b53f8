"""A cluster with its slow links as they were measured."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from jaxpipe.run.drift.slow_links import HostPair, SlowLink
from jaxpipe.topo import Cluster


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
