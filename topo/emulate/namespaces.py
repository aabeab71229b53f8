"""Creates and removes the namespaces of an emulation and the control network of `mpirun`.

::

    machine ── bridge jpPID ─┬─ control ─ namespace of host 0 ─ link0 ─┐
                             ├─ control ─ namespace of host 1 ─ link0 ─┼─ the emulated network
                             └─ control ─ namespace of host 2 ─ link0 ─┘

`mpirun` runs on the machine and reaches its daemons over `control`, at full speed; ranks reach each
other over `link0`, which an engine connects. Sources: ip-netns(8), tcp(7).
"""

import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from jaxpipe.topo.emulate import addresses
from jaxpipe.topo.emulate.commands import EmulationError, ip_batch, run, write_kernel
from jaxpipe.topo.emulate.network_spec import Tcp
from jaxpipe.topo.emulate.owner import NAMESPACES, Owner, owned

_LOCK = Path("/run/jaxpipe-emulate.lock")
_FILES = Path("/etc/netns")
_SECONDS_TO_DIE = 5.0
_SYSCTL = re.compile(r"net\.ipv4\.tcp_[a-z0-9_]+")
_WORDS = re.compile(r"[a-z0-9]+(?: [a-z0-9]+)*")

_SETTINGS = MappingProxyType(
    {
        "ipv6/conf/all/disable_ipv6": "1",
        "ipv6/conf/default/disable_ipv6": "1",
        "ipv4/tcp_no_metrics_save": "1",
        "ipv4/tcp_congestion_control": "reno",
    }
)
"""Reno is the only congestion control that all kernels allow in a namespace; it fills a link whose
queue is as large as its bandwidth-delay product."""

_STEADY = MappingProxyType(
    {
        "ipv4/tcp_rmem": "4096 16777216 134217728",
        "ipv4/tcp_wmem": "4096 1048576 134217728",
        "ipv4/tcp_slow_start_after_idle": "0",
    }
)
"""TCP buffers as large as a long link needs: a cluster's tables state the steady rate of links."""
_KERNEL = MappingProxyType({"ipv4/tcp_slow_start_after_idle": "1"})


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock that lets one process at a time create or remove namespaces."""
    with _LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep() -> list[Owner]:
    """Remove the namespaces of dead owners; return the owners. Needs the lock."""
    dead = [owner for owner in owned() if not owner.is_alive()]
    for owner in dead:
        remove(owner)
    return dead


def make(
    owner: Owner,
    hosts: Sequence[str],
    *,
    tcp: Tcp = Tcp.STEADY,
    sysctls: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Create a namespace for each host and the control network; return the number of the latter.

    `sysctls` take precedence over the settings of `tcp`. Needs the lock.

    Raises:
        EmulationError: a step failed; `remove` undoes those before it.
    """
    index = _free_network()
    owner.folder.mkdir(mode=0o700)
    # Namespaces before links: a veth is created into its namespace.
    ip_batch(f"netns add {owner.namespace(host)}" for host in range(len(hosts)))
    bridge, machine = owner.bridge, addresses.control_address(index, None)
    ip_batch(
        (
            f"link add {bridge} type bridge",
            f"addr add {machine}/16 dev {bridge}",
            f"link set {bridge} up",
        )
    )
    for number, name in enumerate(hosts):
        _join_control(owner, number, addresses.control_address(index, number))
        _write_files(owner.namespace(number), name, hosts)
        of_tcp = _KERNEL if tcp is Tcp.KERNEL else _STEADY
        write_kernel(owner.namespace(number), {**_SETTINGS, **of_tcp})
        _set(owner.namespace(number), sysctls)
    return index


def check_sysctls(sysctls: Mapping[str, str]) -> None:
    """Check settings that are not this project's own.

    Raises:
        ValueError: one is not a setting of the network, or its value not words.
    """
    for name, value in sysctls.items():
        if not _SYSCTL.fullmatch(name) or not _WORDS.fullmatch(value):
            raise ValueError(
                f"`--sysctl` must be a setting of TCP, such as "
                f"net.ipv4.tcp_slow_start_after_idle=0, not {f'{name}={value}'!r:.80}"
            )


def _set(namespace: str, sysctls: Mapping[str, str]) -> None:
    """Write the caller's settings, which the kernel must have and accept.

    Raises:
        EmulationError: it has no such setting in a namespace, or refuses the value.
    """
    for name, value in sysctls.items():
        # One by one, with an error: a setting without effect would be taken for one that has none.
        run("ip", "netns", "exec", namespace, "sysctl", "-w", f"{name}={value}")


def _free_network() -> int:
    """Return the first control network in which the machine has no address."""
    used = {
        ".".join(address["local"].split(".")[:2])
        for device in json.loads(run("ip", "-4", "-j", "addr", "show"))
        for address in device.get("addr_info", ())
    }
    for index in range(addresses.NUM_CONTROL_NETWORKS):
        # "10.64.0.1" to "10.64": the first two numbers name the /16.
        if addresses.control_address(index, None).rpartition(".0.")[0] not in used:
            return index
    raise EmulationError("all networks from 10.64.0.0 on are in use; end other emulations")


def _join_control(owner: Owner, number: int, address: str) -> None:
    # At most 15 characters (IFNAMSIZ): "jp", 7 digits of a pid, ".", 5 digits of a host.
    here, there = f"{owner.bridge}.{number}", owner.namespace(number)
    ip_batch(
        (
            f"link add {here} type veth peer name control netns {there}",
            f"link set {here} master {owner.bridge} up",
        )
    )
    ip_batch(
        (f"addr add {address}/16 dev control", "link set control up", "link set lo up"),
        namespace=there,
    )


def _write_files(namespace: str, name: str, hosts: Sequence[str]) -> None:
    """Write the host's /etc/hosts and /etc/hostname, which `ip netns exec` mounts."""
    folder = _FILES / namespace
    folder.mkdir(parents=True)
    lines = (f"{addresses.data_address(i)} {host}\n" for i, host in enumerate(hosts))
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
    (folder / "hostname").write_text(f"{name}\n")


def remove(owner: Owner) -> None:
    """Kill the processes in an owner's namespaces, and remove all that it owns. Needs the lock."""
    namespaces = [path.name for path in NAMESPACES.glob(f"{owner.name}-*")]
    # Processes first: a namespace lives on while one is in it.
    _kill_all(namespaces)
    devices = [
        name
        for name in os.listdir("/sys/class/net")
        if name == owner.bridge or name.startswith(f"{owner.bridge}.")
    ]
    # -force: one that is gone must not keep the others.
    with suppress(EmulationError):  # deleting namespaces removes them too, but later
        run("ip", "-force", "-batch", "-", text="".join(f"link del {d}\n" for d in devices))
    for namespace in namespaces:
        with suppress(EmulationError):
            run("ip", "netns", "del", namespace)
    for folder in (*_FILES.glob(f"{owner.name}-*"), owner.folder):
        shutil.rmtree(folder, ignore_errors=True)


def _kill_all(namespaces: Sequence[str]) -> None:
    deadline_s = time.monotonic() + _SECONDS_TO_DIE
    # Again and again: between a look and the kill, a process may fork.
    while (processes := processes_in(namespaces)) and time.monotonic() < deadline_s:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes_in(namespaces: Sequence[str]) -> dict[int, int]:
    """Return for each process in one of the namespaces the index of that."""
    known = {}
    for index, namespace in enumerate(namespaces):
        # A namespace is identified by its inode, which /proc/PID/ns/net states as well.
        with suppress(OSError):
            known[(NAMESPACES / namespace).stat().st_ino] = index
    processes: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes end while we look
            inode = int(os.readlink(path / "ns/net").removeprefix("net:[").removesuffix("]"))
            if inode in known:
                processes[int(path.name)] = known[inode]
    return processes
