"""Clusters as TOML files that `topo.load` reads back: hosts one by one, links pair by pair."""

import json
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from topo.cluster import Cluster, Device, Host
from topo.cluster_file import Measured
from topo.units import gbps_from_bytes_per_s, tflops_from_flops_per_s


def cluster_toml(cluster: Cluster, *, measured: Measured | None = None, about: str = "") -> str:
    """Return the file of a cluster; `about` becomes a comment at its top.

    Raises:
        ValueError: the devices of a host differ or do not follow each other, which a cluster file
            cannot say.
    """
    return "\n".join((*_head(cluster, about), *_links(cluster), *_measured(measured), ""))


def _head(cluster: Cluster, about: str) -> Iterator[str]:
    yield from (f"# {line}" for line in about.splitlines())
    yield f"name = {json.dumps(cluster.name)}"
    by_host = [(name, list(group)) for name, group in groupby(cluster.devices, lambda d: d.host)]
    if [name for name, _ in by_host] != [host.name for host in cluster.hosts]:
        raise ValueError("a cluster file lists devices host by host; these stand in another order")
    for host, (_, devices) in zip(cluster.hosts, by_host, strict=True):
        yield from _host(host, devices)


def _host(host: Host, devices: list[Device]) -> Iterator[str]:
    first = devices[0]
    kinds = {(device.gpu, device.effective_flops_per_s) for device in devices}
    if len(kinds) > 1:
        raise ValueError(f"devices of one host are alike in a cluster file; {host.name!r} differs")
    yield "\n[[hosts]]"
    yield f"name = {json.dumps(host.name)}"
    yield f"region = {json.dumps(host.region)}"
    yield f"devices = {len(devices)}"
    if first.gpu is not None:
        yield f"gpu = {json.dumps(first.gpu.name)}"
    if first.effective_flops_per_s is not None:
        yield f"effective_tflops = {tflops_from_flops_per_s(first.effective_flops_per_s)!r}"
    if np.isfinite(host.egress_bytes_per_s):
        yield f"egress_gbps = {gbps_from_bytes_per_s(host.egress_bytes_per_s)!r}"
    if np.isfinite(host.ingress_bytes_per_s):
        yield f"ingress_gbps = {gbps_from_bytes_per_s(host.ingress_bytes_per_s)!r}"


def _links(cluster: Cluster) -> Iterator[str]:
    yield "\n[pairs]  # row: from, column: to"
    yield from _rows("latency_s", cluster.latency_s)
    yield from _rows("bandwidth_bytes_per_s", cluster.bandwidth_bytes_per_s)
    if not np.array_equal(cluster.alone_bytes_per_s, cluster.bandwidth_bytes_per_s):
        yield from _rows("alone_bytes_per_s", cluster.alone_bytes_per_s)


def _measured(measured: Measured | None) -> Iterator[str]:
    if measured is None:
        return
    yield "\n[measured]"
    for name in ("small_bytes", "small_repeats", "large_bytes", "large_repeats"):
        yield f"{name} = {getattr(measured, name)}"
    for name in ("latency_spread_s", "bandwidth_spread_bytes_per_s"):
        yield from _rows(name, np.array(getattr(measured, name), float))


def _rows(name: str, matrix: np.ndarray) -> Iterator[str]:
    yield f"{name} = ["
    for row in matrix.tolist():
        yield f"  [{', '.join(map(repr, row))}],"
    yield "]"
