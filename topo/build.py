"""From what a cluster file says to the cluster."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from topo.cluster import Cluster, Device, Host
from topo.cluster_file import ClusterFile, HostGroup, Speed
from topo.csv_table import csv_rows
from topo.gpu import gpu
from topo.matrix import parse_matrix
from topo.units import bytes_per_s_from_gbps, flops_per_s_from_tflops, seconds_from_ms

ReadBeside = Callable[[str], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrices:
    latency_s: np.ndarray
    bandwidth_bytes_per_s: np.ndarray
    alone_bytes_per_s: np.ndarray


def build(file: ClusterFile, *, name: str, read_beside: ReadBeside) -> Cluster:
    """Return the cluster; `read_beside` returns the files that the cluster file names.

    Time and memory grow with the square of the number of devices, and nothing else does.

    Raises:
        ValueError: two hosts of the cluster have no link, or the cluster is not a valid one.
    """
    placed = tuple(_hosts(file))
    hosts = tuple(host for host, _ in placed)
    devices = tuple(device for host, group in placed for device in _devices(host, group))
    if not devices:
        raise ValueError("a cluster has at least one device: `hosts` is empty, add one")
    if file.pairs is None:
        matrices = _by_region(file, devices, read_beside)
    else:
        latency = _matrix(file.pairs.latency_s, read_beside)
        bandwidth = _matrix(file.pairs.bandwidth_bytes_per_s, read_beside)
        matrices = _Matrices(
            latency_s=latency, bandwidth_bytes_per_s=bandwidth, alone_bytes_per_s=bandwidth
        )
    return Cluster(
        name=name,
        devices=devices,
        hosts=hosts,
        latency_s=matrices.latency_s,
        bandwidth_bytes_per_s=matrices.bandwidth_bytes_per_s,
        alone_bytes_per_s=matrices.alone_bytes_per_s,
    )


def _hosts(file: ClusterFile) -> Iterator[tuple[Host, HostGroup]]:
    seen: dict[str, int] = {}
    for group in file.hosts:
        for region in group.regions:
            for _ in range(group.count):
                index = seen.get(region, 0)
                seen[region] = index + 1
                egress = group.nic_gbps if group.egress_gbps is None else group.egress_gbps
                ingress = group.nic_gbps if group.ingress_gbps is None else group.ingress_gbps
                host = Host(
                    name=group.name or f"{region}-{index}",
                    region=region,
                    egress_bytes_per_s=bytes_per_s_from_gbps(egress),
                    ingress_bytes_per_s=bytes_per_s_from_gbps(ingress),
                )
                yield host, group


def _devices(host: Host, group: HostGroup) -> Iterator[Device]:
    tflops = group.effective_tflops
    for slot in range(group.devices):
        yield Device(
            name=f"{host.name}:{slot}",
            host=host.name,
            region=host.region,
            gpu=None if group.gpu is None else gpu(group.gpu),
            effective_flops_per_s=None if tflops is None else flops_per_s_from_tflops(tflops),
        )


def _by_region(
    file: ClusterFile, devices: tuple[Device, ...], read_beside: ReadBeside
) -> _Matrices:
    regions = list(dict.fromkeys(device.region for device in devices))
    hosts = list(dict.fromkeys(device.host for device in devices))
    region = np.array([regions.index(device.region) for device in devices])
    number = {name: i for i, name in enumerate(hosts)}
    host = np.array([number[device.host] for device in devices])
    same_host = host[:, None] == host[None, :]
    speeds = _region_speeds(file, regions, read_beside, _needed(region, host, len(regions)))
    pairs = (region[:, None], region[None, :])

    def spread(of: Callable[[Speed], float], diagonal: float) -> np.ndarray:
        table = np.array([[np.nan if s is None else of(s) for s in row] for row in speeds])
        matrix = np.where(same_host, of(file.inside_host), table[pairs])
        np.fill_diagonal(matrix, diagonal)
        return matrix

    bandwidth = spread(lambda s: bytes_per_s_from_gbps(s.bandwidth_gbps), np.inf)
    every = [file.inside_host, *(s for row in speeds for s in row if s is not None)]
    return _Matrices(
        latency_s=spread(lambda s: seconds_from_ms(s.latency_ms), 0.0),
        bandwidth_bytes_per_s=bandwidth,
        alone_bytes_per_s=spread(_alone_bytes_per_s, np.inf)
        if any(s.alone_gbps is not None for s in every)
        else bandwidth,
    )


def _alone_bytes_per_s(speed: Speed) -> float:
    alone = speed.bandwidth_gbps if speed.alone_gbps is None else speed.alone_gbps
    return bytes_per_s_from_gbps(alone)


def _needed(region: np.ndarray, host: np.ndarray, num_regions: int) -> np.ndarray:
    """Which ordered pairs of regions have hosts that a link must join."""
    needed = np.ones((num_regions, num_regions), bool)
    for r in range(num_regions):
        needed[r, r] = len(np.unique(host[region == r])) > 1
    return needed


def _region_speeds(
    file: ClusterFile, regions: list[str], read_beside: ReadBeside, needed: np.ndarray
) -> list[list[Speed | None]]:
    known: dict[tuple[str, str], Speed] = {}
    if file.link_table is not None:
        known |= _link_table(read_beside(file.link_table).decode())
    if file.inside_region is not None:
        known |= {(region, region): file.inside_region for region in regions}
    known |= {pair: link for link in file.links for pair in link.directions()}
    for i, j in np.argwhere(needed):
        if (regions[i], regions[j]) not in known:
            raise ValueError(
                f"no entry in `links` leads from {regions[i]!r} to {regions[j]!r}; joined are: "
                + ", ".join(sorted({a for a, _ in known}))
            )
    return [[known.get((a, b)) for b in regions] for a in regions]


def _link_table(text: str) -> Mapping[tuple[str, str], Speed]:
    """Read region_a, region_b, latency_ms, bandwidth_gbps: both directions alike."""
    known: dict[tuple[str, str], Speed] = {}
    for row in csv_rows(text):
        speed = Speed(
            latency_ms=float(row["latency_ms"]), bandwidth_gbps=float(row["bandwidth_gbps"])
        )
        known[row["region_a"], row["region_b"]] = speed
        known[row["region_b"], row["region_a"]] = speed
    return known


def _matrix(given: str | tuple[tuple[float, ...], ...], read_beside: ReadBeside) -> np.ndarray:
    if isinstance(given, str):
        return parse_matrix(read_beside(given), suffix=PurePath(given).suffix)
    return np.array(given, float)
