"""The islands of a cluster as a tree.

::

islands
├─ ohio: 32 devices, up to 1 ms, down to 5 Gbps
└─ virginia: 32 devices, up to 1 ms, down to 5 Gbps
"""

from collections.abc import Iterator

import numpy as np

from topo.cluster import Cluster
from topo.islands import Island, find_islands, flatten, message_seconds
from topo.units import gbps_from_bytes_per_s, ms_from_seconds


def draw_islands(cluster: Cluster) -> str:
    """Return the islands, with the worst latency and bandwidth inside each."""
    distance = message_seconds(cluster.latency_s, cluster.bandwidth_bytes_per_s)
    return "\n".join(("islands", *_branches(cluster, find_islands(distance))))


def _branches(cluster: Cluster, island: tuple[Island, ...]) -> Iterator[str]:
    """Yield the lines of an island's members; single devices share one line."""
    single = tuple(member for member in island if isinstance(member, int))
    nested = [member for member in island if not isinstance(member, int)]
    members: list[tuple[Island, ...]] = [*nested, *([single] if single else [])]
    for number, member in enumerate(members, start=1):
        last = number == len(members)
        yield f"{'└─' if last else '├─'} {_label(cluster, flatten(member))}"
        if member is not single and any(not isinstance(inner, int) for inner in member):
            for line in _branches(cluster, member):
                yield f"{'  ' if last else '│ '} {line}"


def _label(cluster: Cluster, devices: tuple[int, ...]) -> str:
    if len(devices) == 1:
        return cluster.devices[devices[0]].name
    pairs = np.ix_(devices, devices)
    latency_ms = ms_from_seconds(float(cluster.latency_s[pairs].max()))
    gbps = gbps_from_bytes_per_s(float(cluster.bandwidth_bytes_per_s[pairs].min()))
    return (
        f"{_place(cluster, devices)}: {len(devices):,} devices, up to {latency_ms:.4g} ms, down to "
        f"{gbps:.4g} Gbps"
    )


def _place(cluster: Cluster, devices: tuple[int, ...]) -> str:
    """Return the host, the region or the regions that hold the devices."""
    chosen = [cluster.devices[device] for device in devices]
    hosts = tuple(dict.fromkeys(device.host for device in chosen))
    regions = tuple(dict.fromkeys(device.region for device in chosen))
    if len(hosts) == 1:
        return hosts[0]
    if len(regions) == 1:
        whole = sum(device.region == regions[0] for device in cluster.devices) == len(devices)
        return regions[0] if whole else f"{hosts[0]} to {hosts[-1]}"
    return " + ".join(regions)
