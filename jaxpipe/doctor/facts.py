"""Facts about each rank, gathered on rank 0: host, cores, versions, devices, links."""

import os
import platform
import time
from dataclasses import dataclass
from importlib import metadata
from statistics import median

import jax
import msgspec
import numpy as np

from jaxpipe.comm import GATHER_TAG, Transport, gather_bytes
from jaxpipe.installed import installed_versions
from jaxpipe.runtime.blas.product_lowering import use_products
from jaxpipe.runtime.process.gpu_assignment import gpu_name
from jaxpipe.topo.host_tcp import TcpSettings, read_tcp_settings

NCCL_PACKAGES = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""NCCL, one for each version of CUDA; none is installed on a machine without GPUs."""
_SMALL_BYTES, _LARGE_BYTES = 8, 4 * 2**20  # latency, bandwidth
_SMALL_REPEATS, _LARGE_REPEATS = 20, 5
_TAG = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Facts about one rank; `latency_s` and `bytes_per_s` are those of its link with rank 0.

    `devices` are the kinds of its devices; `gpus` names its GPUs among those of its host;
    `products` says what computes its large products of matrices. Rank 0 has no link with itself.
    """

    rank: int
    num_ranks: int
    host: str
    cores: tuple[int, ...]
    versions: dict[str, str]
    devices: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    products: str = ""
    latency_s: float | None = None
    bytes_per_s: float | None = None
    tcp: TcpSettings | None = None


def gather_facts(transport: Transport, *, timeout_s: float) -> tuple[RankFacts, ...] | None:
    """Return the facts of all ranks on rank 0, and None elsewhere; all ranks call this.

    Raises:
        DeadlineError: a rank did not answer in time.
        TransportError: a message could not be moved.
    """
    latency_s, bytes_per_s = _link(transport, timeout_s=timeout_s)
    facts = RankFacts(
        rank=transport.rank,
        num_ranks=transport.num_ranks,
        host=platform.node(),
        cores=_cores(),
        versions={"python": platform.python_version()}
        | installed_versions()
        | {name: version for name in NCCL_PACKAGES if (version := _version(name)) is not None},
        devices=tuple(device.device_kind for device in jax.local_devices()),
        gpus=tuple(
            gpu_name(device.local_hardware_id, os.environ)
            for device in jax.local_devices()
            if device.platform == "gpu"
        ),
        products=str(use_products(os.environ)),
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        tcp=read_tcp_settings(),
    )
    payloads = gather_bytes(
        transport, msgspec.json.encode(facts), root=0, tag=GATHER_TAG, timeout_s=timeout_s
    )
    if payloads is None:
        return None
    return tuple(msgspec.json.decode(payload, type=RankFacts) for payload in payloads)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _link(transport: Transport, *, timeout_s: float) -> tuple[float | None, float | None]:
    """Measure ping-pong with rank 0, one rank at a time: half of a round trip, and bytes/s."""
    if transport.rank == 0:
        # One rank at a time: together, they would share the links of rank 0.
        for other in range(1, transport.num_ranks):
            _rounds(transport, other, timeout_s=timeout_s)
        return None, None
    small_s, large_s = _rounds(transport, 0, timeout_s=timeout_s)
    # The latency is in both; 1e-9: on a fast host, the difference may be below the clock's noise.
    return small_s, _LARGE_BYTES / max(large_s - small_s, 1e-9)


def _rounds(transport: Transport, other: int, *, timeout_s: float) -> tuple[float, float]:
    """Return the median seconds one way of a small and of a large message."""
    medians = []
    for num_bytes, repeats in ((_SMALL_BYTES, _SMALL_REPEATS), (_LARGE_BYTES, _LARGE_REPEATS)):
        array = np.zeros(num_bytes, np.uint8)
        taken_s = []
        for _ in range(repeats):
            start_s = time.perf_counter()
            _exchange(transport, array, other=other, timeout_s=timeout_s)
            # Medians, not means: the first exchange of a rank waits until rank 0 has come to it.
            taken_s.append((time.perf_counter() - start_s) / 2)
        medians.append(median(taken_s))
    return medians[0], medians[1]


def _exchange(transport: Transport, array: np.ndarray, *, other: int, timeout_s: float) -> None:
    """Send and wait for the echo; rank 0 is the one that echoes."""
    like = jax.ShapeDtypeStruct(array.shape, array.dtype)
    # Posted before the send, so that a large echo need not wait in MPI's own memory.
    receiving = transport.receive(like, source=other, tag=_TAG)
    if transport.rank == 0:
        receiving.wait(timeout_s=timeout_s)
    sending = transport.send(array, to=other, tag=_TAG)
    sending.wait(timeout_s=timeout_s)
    if transport.rank != 0:
        receiving.wait(timeout_s=timeout_s)
