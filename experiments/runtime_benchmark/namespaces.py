"""Network namespaces joined by links of a cluster's bandwidths: what an MPI library can be run in.

Each rank gets a namespace with one address, and a pair of virtual Ethernet devices for every other
rank, each end shaped by the kernel's token bucket. Delays are left out: they need a kernel module,
netem, that many machines lack. It takes root, and leaves nothing behind.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

from experiments.runtime_benchmark.claim import CannotMeasureError
from topo import Cluster

_PREFIX = "jaxpipe-"
_DEVICE = "br0"
_MTU = 9000

MPICH_SETTINGS = {
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": _DEVICE,
}
"""What makes MPICH talk TCP between ranks of one host, from the namespace's own address."""


@contextmanager
def joined(cluster: Cluster, *, scale: float) -> Iterator[None]:
    """Make a namespace for each device, with links `scale` times slower, and remove them after.

    Raises:
        CannotMeasureError: there are no rights or no programs to do so.
    """
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        raise CannotMeasureError("namespaces take root, and the programs `ip` and `tc`")
    size = len(cluster)
    try:
        for rank in range(size):
            _make(rank)
        for a, b in combinations(range(size), 2):
            _join(a, b)
            for source, to in ((a, b), (b, a)):
                rate = cluster.link(source, to).bandwidth_bytes_per_s / scale
                _shape(source, to, bytes_per_s=rate)
        yield
    finally:
        for rank in range(size):
            subprocess.run(["ip", "netns", "del", f"{_PREFIX}{rank}"], check=False)


def enter() -> Sequence[str]:
    """Return the command, to be followed by another one, that enters the namespace of its rank."""
    return ("sh", "-c", f'exec ip netns exec {_PREFIX}$PMI_RANK "$@"', "sh")


def _make(rank: int) -> None:
    name = f"{_PREFIX}{rank}"
    _run("ip", "netns", "add", name)
    _run("ip", "-n", name, "link", "add", "name", _DEVICE, "type", "bridge")
    _run("ip", "-n", name, "addr", "add", f"{_address(rank)}/32", "dev", _DEVICE)
    for device in ("lo", _DEVICE):
        _run("ip", "-n", name, "link", "set", "dev", device, "up")


def _join(a: int, b: int) -> None:
    here, there = f"{_PREFIX}{a}", f"{_PREFIX}{b}"
    pair = ("type", "veth", "peer", "name", f"to{a}", "netns", there)
    _run("ip", "-n", here, "link", "add", "name", f"to{b}", *pair)
    for name, to in ((here, b), (there, a)):
        _run("ip", "-n", name, "link", "set", "dev", f"to{to}", "mtu", str(_MTU), "up")


def _shape(source: int, to: int, *, bytes_per_s: float) -> None:
    name, device = f"{_PREFIX}{source}", f"to{to}"
    route = (f"{_address(to)}/32", "dev", device, "src", _address(source))
    _run("ip", "-n", name, "route", "add", *route)
    bucket = ("tbf", "rate", f"{round(8 * bytes_per_s)}bit", "burst", "64kb", "latency", "200ms")
    _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", *bucket)


def _address(rank: int) -> str:
    return f"10.9.0.{rank + 1}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasureError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
