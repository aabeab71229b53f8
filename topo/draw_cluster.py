"""Text drawing of a cluster: its hosts, the links between regions, and the tree of its islands.

::

islands
├─ ohio: 32 devices, up to 1 ms, down to 5 Gbps
└─ virginia: 32 devices, up to 1 ms, down to 5 Gbps
"""

from collections.abc import Iterator
from itertools import groupby
from math import inf

import numpy as np

from jaxpipe.topo.cluster import Cluster, Host
from jaxpipe.topo.islands import Island, find_islands, flatten, message_seconds
from jaxpipe.topo.units import gbps_from_bytes_per_s, mib_from_bytes, ms_from_seconds


def draw_cluster(cluster: Cluster) -> str:
    """Return the hosts, the latency and bandwidth between regions, and the tree of islands."""
    title = (
        f"{cluster.name}: {_count(len(cluster), 'device')} on "
        f"{_count(len(cluster.hosts), 'host')} in {_count(len(cluster.regions), 'region')}"
    )
    latency_ms = ms_from_seconds(1) * cluster.latency_s
    bandwidth_gbps = gbps_from_bytes_per_s(1) * cluster.bandwidth_bytes_per_s
    sections = [
        "\n".join((title, *_hosts(cluster), *_trunks(cluster))),
        _between_regions("latency in ms", cluster, latency_ms),
        _between_regions("bandwidth in Gbps", cluster, bandwidth_gbps),
    ]
    # Mostly the same array: a table of its own would repeat the one above.
    if not np.array_equal(cluster.alone_bytes_per_s, cluster.bandwidth_bytes_per_s):
        alone_gbps = gbps_from_bytes_per_s(1) * cluster.alone_bytes_per_s
        sections.append(_between_regions("Gbps of a pair alone", cluster, alone_gbps))
    return "\n\n".join((*sections, draw_islands(cluster)))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _hosts(cluster: Cluster) -> Iterator[str]:
    """Yield a line for each run of equal hosts."""
    kinds: dict[str, list[str]] = {host.name: [] for host in cluster.hosts}
    for device in cluster.devices:
        kinds[device.host].append("of unknown type" if device.gpu is None else device.gpu.name)
    lines = [
        f"{host.region}: # x {' + '.join(_runs(kinds[host.name]))}{_nic(host)}"
        for host in cluster.hosts
    ]
    for line, run in groupby(lines):
        # "#" stands for the count, so that equal lines are one group.
        yield "  " + line.replace("#", _count(len(list(run)), "host"), 1)


def _trunks(cluster: Cluster) -> Iterator[str]:
    for trunk in cluster.trunks:
        gbps = gbps_from_bytes_per_s(trunk.bytes_per_s)
        yield f"  {trunk.source} to {trunk.destination}: {gbps:.4g} Gbps, shared by all connections"


def _runs(names: list[str]) -> Iterator[str]:
    for name, run in groupby(names):
        yield f"{len(list(run))} {name}"


def _nic(host: Host) -> str:
    limits = (("out", host.egress_bytes_per_s), ("in", host.ingress_bytes_per_s))
    stated = [
        f"{gbps_from_bytes_per_s(limit):.4g} Gbps {direction}"
        for direction, limit in limits
        if limit < inf
    ]
    if host.burst_bytes:
        stated.append(f"{mib_from_bytes(host.burst_bytes):.4g} MiB at once")
    return f", shared NIC {', '.join(stated)}" if stated else ""


def _between_regions(title: str, cluster: Cluster, values: np.ndarray) -> str:
    """Return a table from the row's region to the column's; on the diagonal between its hosts."""
    regions = cluster.regions
    region = np.array([regions.index(device.region) for device in cluster.devices])
    host = np.array(cluster.host_of)
    members = [np.flatnonzero(region == i) for i in range(len(regions))]
    cells = [
        [_range(values[np.ix_(a, b)], where=host[a][:, None] != host[b][None, :]) for b in members]
        for a in members
    ]
    width = 2 + max(len(text) for text in (*regions, *(cell for row in cells for cell in row)))
    first = 2 + max(len(text) for text in (*regions, "inside a host"))
    lines = [title, " " * first + "".join(name.rjust(width) for name in regions)]
    for name, row in zip(regions, cells, strict=True):
        lines.append(name.ljust(first) + "".join(cell.rjust(width) for cell in row))
    inside = host[:, None] == host[None, :]
    np.fill_diagonal(inside, False)
    if inside.any():
        lines.append("inside a host".ljust(first) + _range(values, where=inside).rjust(width))
    return "\n".join(lines)


def _range(values: np.ndarray, *, where: np.ndarray) -> str:
    selected = values[where]
    if not selected.size:
        return "-"
    low, high = f"{selected.min():.4g}", f"{selected.max():.4g}"
    return low if low == high else f"{low}-{high}"


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
        f"{_location(cluster, devices)}: {len(devices):,} devices, up to {latency_ms:.4g} ms, "
        f"down to {gbps:.4g} Gbps"
    )


def _location(cluster: Cluster, devices: tuple[int, ...]) -> str:
    """Return the host, the region or the regions of the devices."""
    selected = [cluster.devices[device] for device in devices]
    hosts = tuple(dict.fromkeys(device.host for device in selected))
    regions = tuple(dict.fromkeys(device.region for device in selected))
    if len(hosts) == 1:
        return hosts[0]
    if len(regions) == 1:
        is_whole_region = sum(device.region == regions[0] for device in cluster.devices) == len(
            devices
        )
        return regions[0] if is_whole_region else f"{hosts[0]} to {hosts[-1]}"
    return " + ".join(regions)
