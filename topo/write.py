"""Clusters as TOML files that `jaxpipe.topo.load` reads: hosts one by one, links pair by pair."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from jaxpipe.topo.cluster import Cluster, Device, Host, Trunk
from jaxpipe.topo.cluster_file import Measured
from jaxpipe.topo.gpu import gpu_names
from jaxpipe.topo.toml_text import toml_pair, toml_rows
from jaxpipe.topo.units import (
    gbps_from_bytes_per_s,
    gib_from_bytes,
    mib_from_bytes,
    tflops_from_flops_per_s,
)


def cluster_toml(cluster: Cluster, *, measured: Measured | None = None, about: str = "") -> str:
    """Return the file of a cluster; `about` becomes a comment at its top.

    Raises:
        ValueError: the devices of a host differ or do not follow each other, which a cluster file
            cannot say.
    """
    return "\n".join((*_head(cluster, about), *_links(cluster), *_measured(measured), ""))


def _head(cluster: Cluster, about: str) -> Iterator[str]:
    yield from (f"# {line}" for line in about.splitlines())
    yield toml_pair("name", cluster.name)
    if cluster.restart_bytes is not None:
        yield toml_pair("restart_kb", cluster.restart_bytes / 1e3)
    by_host = [(name, list(group)) for name, group in groupby(cluster.devices, lambda d: d.host)]
    # Hosts without devices, and hosts whose devices are apart, differ here.
    if [name for name, _ in by_host] != [host.name for host in cluster.hosts]:
        raise ValueError(
            "cannot write the cluster: a cluster file lists devices host by host, and these stand "
            "in another order"
        )
    for host, (_, devices) in zip(cluster.hosts, by_host, strict=True):
        yield from _host(host, devices)
    for trunk in cluster.trunks:
        yield from _trunk(trunk)


def _trunk(trunk: Trunk) -> Iterator[str]:
    yield "\n[[trunks]]"
    yield toml_pair("source", trunk.source)
    yield toml_pair("destination", trunk.destination)
    yield toml_pair("capacity_gbps", gbps_from_bytes_per_s(trunk.bytes_per_s))


def _host(host: Host, devices: list[Device]) -> Iterator[str]:
    first = devices[0]
    if len({replace(device, name="") for device in devices}) > 1:
        raise ValueError(f"host {host.name!r} has unlike devices, which a cluster file cannot list")
    yield "\n[[hosts]]"
    yield toml_pair("name", host.name)
    yield toml_pair("region", host.region)
    yield toml_pair("devices", len(devices))
    if first.gpu is not None:
        yield toml_pair("gpu", first.gpu.name)
    listed = first.gpu if first.gpu is not None and first.gpu.name in gpu_names() else None
    of_type = None if listed is None else listed.memory_bytes
    if first.memory_bytes is not None and first.memory_bytes != of_type:
        yield toml_pair("memory_gib", gib_from_bytes(first.memory_bytes))
    if first.peak_flops_per_s is not None:
        yield toml_pair("tflops", tflops_from_flops_per_s(first.peak_flops_per_s))
    if first.effective_flops_per_s is not None:
        tflops = tflops_from_flops_per_s(first.effective_flops_per_s)
        yield toml_pair("effective_tflops", tflops)
    if first.relative_speed != 1:
        yield toml_pair("relative_speed", first.relative_speed)
    yield from _costs(first)
    if np.isfinite(host.egress_bytes_per_s):
        yield toml_pair("egress_gbps", gbps_from_bytes_per_s(host.egress_bytes_per_s))
    if np.isfinite(host.ingress_bytes_per_s):
        yield toml_pair("ingress_gbps", gbps_from_bytes_per_s(host.ingress_bytes_per_s))
    if host.burst_bytes:
        yield toml_pair("burst_mib", mib_from_bytes(host.burst_bytes))


def _costs(device: Device) -> Iterator[str]:
    """Yield the prices and the power of a device, as far as its GPU type does not say them."""
    of_type = None if device.gpu is None or device.gpu.name not in gpu_names() else device.gpu.watts
    for name in ("dollars_per_hour", "egress_dollars_per_gb", "watts"):
        value = getattr(device, name)
        if value is not None and (name != "watts" or value != of_type):
            yield toml_pair(name, value)


def _links(cluster: Cluster) -> Iterator[str]:
    yield "\n[pairs]  # row: from, column: to"
    yield from _matrix("latency_s", cluster.latency_s)
    yield from _matrix("bandwidth_bytes_per_s", cluster.bandwidth_bytes_per_s)
    # By value: a cluster that was read back may have two equal arrays.
    if not np.array_equal(cluster.alone_bytes_per_s, cluster.bandwidth_bytes_per_s):
        yield from _matrix("alone_bytes_per_s", cluster.alone_bytes_per_s)


def _measured(measured: Measured | None) -> Iterator[str]:
    if measured is None:
        return
    yield "\n[measured]"
    for name in ("small_bytes", "small_repeats", "large_bytes", "large_repeats"):
        yield toml_pair(name, getattr(measured, name))
    for name in ("latency_spread_s", "bandwidth_spread_bytes_per_s"):
        yield from _matrix(name, np.array(getattr(measured, name), float))


def _matrix(name: str, matrix: np.ndarray) -> list[str]:
    return toml_rows(name, matrix.tolist(), indent=2)
