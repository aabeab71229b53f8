"""Construction of a cluster from its file."""

import re
from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from jaxpipe.topo.cluster import Cluster, Device, Trunk
from jaxpipe.topo.cluster_file import MAX_DEVICES, ClusterFile, HostGroup, Pairs, Rows
from jaxpipe.topo.gpu import Gpu, gpu, gpu_names
from jaxpipe.topo.host_groups import HostOfGroup, ReadBeside, hosts_of, parse_beside
from jaxpipe.topo.links import Matrices, matrices_by_region
from jaxpipe.topo.matrix import parse_matrix
from jaxpipe.topo.nvidia import parse_gpu_links
from jaxpipe.topo.units import (
    bytes_from_gib,
    bytes_per_s_from_gbps,
    flops_per_s_from_tflops,
)

_GPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


def build(file: ClusterFile, *, name: str, read_beside: ReadBeside) -> Cluster:
    """Return the cluster; `read_beside` reads the files that the cluster file names.

    Cost: time and memory grow with the square of the number of devices.

    Raises:
        ValueError: two hosts of the cluster have no link, or the cluster is not a valid one.
    """
    hosts = tuple(hosts_of(file.hosts, read_beside))
    num_devices = sum(host.num_devices for host in hosts)
    if num_devices > MAX_DEVICES:
        raise ValueError(
            f"`devices` of the hosts, or the slots in `hostfile`, are {num_devices:,} in all, and "
            f"must be at most {MAX_DEVICES:,}; lower them"
        )
    devices = tuple(device for host in hosts for device in _devices(host))
    if not devices:
        raise ValueError("`hosts` must have at least one device: add a host")
    # `pairs` states all links, those between GPUs of a host included.
    if file.pairs is None:
        matrices = matrices_by_region(file, devices, read_beside)
        # After the regions: nvidia-smi is more specific than `inside_host`.
        _join_gpus(matrices, hosts, read_beside)
    else:
        matrices = _given(file.pairs, read_beside)
    return Cluster(
        name=name,
        devices=devices,
        hosts=tuple(host.host for host in hosts),
        latency_s=matrices.latency_s,
        bandwidth_bytes_per_s=matrices.bandwidth_bytes_per_s,
        alone_bytes_per_s=matrices.alone_bytes_per_s,
        trunks=tuple(_trunks(file)),
        restart_bytes=None if file.restart_kb is None else 1e3 * file.restart_kb,
    )


def _trunks(file: ClusterFile) -> Iterator[Trunk]:
    for entry in file.trunks:
        bytes_per_s = bytes_per_s_from_gbps(entry.capacity_gbps)
        for source, destination in entry.directions():
            yield Trunk(source=source, destination=destination, bytes_per_s=bytes_per_s)


def _devices(host: HostOfGroup) -> Iterator[Device]:
    group, flops_per_s = host.group, flops_per_s_from_tflops
    effective, tflops, memory_gib = group.effective_tflops, group.tflops, group.memory_gib
    for slot in range(host.num_devices):
        yield Device(
            name=f"{host.host.name}:{slot}",
            host=host.host.name,
            region=host.host.region,
            gpu=_gpu(group),
            effective_flops_per_s=None if effective is None else flops_per_s(effective),
            peak_flops_per_s=None if tflops is None else flops_per_s(tflops),
            memory_bytes=None if memory_gib is None else bytes_from_gib(memory_gib),
            relative_speed=group.relative_speed,
            dollars_per_hour=group.dollars_per_hour,
            egress_dollars_per_gb=group.egress_dollars_per_gb,
            watts=group.watts,
        )


def _gpu(group: HostGroup) -> Gpu | None:
    """Return the GPU of a group: one of the table, or the one that the group describes."""
    if group.gpu is None:
        return None
    has_speed = group.tflops is not None or group.effective_tflops is not None
    if group.gpu in gpu_names() or group.memory_gib is None or not has_speed:
        return gpu(group.gpu)
    # It is drawn and written as it is.
    if not _GPU_NAME.fullmatch(group.gpu):
        raise ValueError(
            f"`gpu` must be a name of letters, digits, '.', '_' and '-', not {group.gpu!r:.80}"
        )
    # No peaks: that of the device is `tflops`, in the one format that its owner has in mind.
    memory_bytes = bytes_from_gib(group.memory_gib)
    return Gpu(name=group.gpu, memory_bytes=memory_bytes, peaks=(), source="the cluster file")


def _join_gpus(matrices: Matrices, hosts: tuple[HostOfGroup, ...], read_beside: ReadBeside) -> None:
    """Replace the links inside hosts by those of the output of nvidia-smi."""
    start = 0
    for host in hosts:
        stop = start + host.num_devices
        if host.group.nvidia_topology is not None:
            kinds = parse_beside(host.group.nvidia_topology, parse_gpu_links, read_beside)
            # More GPUs than devices are fine: a job may use the first of them.
            if len(kinds) < host.num_devices:
                raise ValueError(
                    f"`nvidia_topology` {host.group.nvidia_topology!r} has {len(kinds)} GPUs, "
                    f"but host {host.host.name!r} has {host.num_devices} devices"
                )
            matrices.join_gpus(kinds, start=start, stop=stop)
        start = stop


def _given(pairs: Pairs, read_beside: ReadBeside) -> Matrices:
    bandwidth = _matrix(pairs.bandwidth_bytes_per_s, read_beside)
    alone = pairs.alone_bytes_per_s
    return Matrices(
        latency_s=_matrix(pairs.latency_s, read_beside),
        bandwidth_bytes_per_s=bandwidth,
        alone_bytes_per_s=bandwidth if alone is None else _matrix(alone, read_beside),
    )


def _matrix(given: str | Rows, read_beside: ReadBeside) -> np.ndarray:
    if isinstance(given, str):
        return parse_matrix(read_beside(given), suffix=PurePath(given).suffix)
    # NumPy would make an array of objects of uneven rows.
    if len({len(row) for row in given}) != 1:
        raise ValueError(f"`pairs`: rows must be equally long, not {[len(row) for row in given]}")
    return np.array(given, float)
