"""Emulated cluster: create its network, run commands in it, count traffic, and always remove it.

>>> import os, subprocess, topo
>>> def bytes_between_hosts(command):
...     with emulated(topo.load("two-region")) as emulation:  # needs root
...         subprocess.run(command, env=os.environ | emulation.settings, check=True)
...         return emulation.traffic().sent_bytes
"""

import json
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from jaxpipe.topo.cluster import Cluster
from jaxpipe.topo.emulate import addresses
from jaxpipe.topo.emulate.bridge_engine import BridgeEngine
from jaxpipe.topo.emulate.commands import run
from jaxpipe.topo.emulate.engine import (
    ChosenEngine,
    Engine,
    EngineKind,
    LinkCount,
    check_machine,
    choose,
)
from jaxpipe.topo.emulate.mpi import available_cores, mpi_settings
from jaxpipe.topo.emulate.namespaces import check_sysctls, locked, make, remove, sweep
from jaxpipe.topo.emulate.network_spec import NetworkSpec, Tcp, network_spec
from jaxpipe.topo.emulate.own_disks import MOUNTS, give_disks
from jaxpipe.topo.emulate.owner import Owner, this_process
from jaxpipe.topo.emulate.rank_watch import RankWatch
from jaxpipe.topo.emulate.relay_engine import RelayEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCount:
    """The traffic of the interface of a host in the emulated network."""

    host: str
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTraffic:
    """The traffic of a network: by host, and by link if the engine counts links."""

    hosts: tuple[HostCount, ...]
    links: tuple[LinkCount, ...]

    @property
    def sent_bytes(self) -> int:
        """The bytes that all hosts have sent."""
        return sum(host.sent_bytes for host in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A running emulated network.

    Add `settings` to the environment of a command so that its `mpirun` starts ranks in the
    namespaces: rank `r` on the host of device `devices[r]`.
    """

    owner: Owner
    cluster: Cluster
    choice: ChosenEngine
    engine: Engine
    settings: Mapping[str, str]
    devices: tuple[int, ...]

    def enter(self, host: str) -> tuple[str, ...]:
        """Return the prefix of a command that runs it on a host.

        Raises:
            ValueError: there is no such host.
        """
        names = [host.name for host in self.cluster.hosts]
        if host not in names:
            raise ValueError(f"cluster {self.cluster.name!r} has no host {host!r}: it has {names}")
        number = names.index(host)
        named = _named(host, number=number, mounts=self.owner.folder / MOUNTS)
        return ("ip", "netns", "exec", self.owner.namespace(number), "unshare", "--uts", *named)

    def give_disks(self, paths: Sequence[Path]) -> None:
        """Give each host its own content of these folders, from the next `mpirun` on.

        Raises:
            ValueError: a path is not absolute, or no folder.
        """
        give_disks(self.owner, len(self.cluster.hosts), paths)

    def watch(self) -> RankWatch:
        """Return a watch of the hosts of ranks, to be entered before they start."""
        hosts = self.cluster.host_of
        return RankWatch(
            self.owner, len(self.cluster.hosts), [hosts[device] for device in self.devices]
        )

    def traffic(self) -> NetworkTraffic:
        """Return the traffic so far.

        Raises:
            EmulationError: the engine has ended.
        """
        return NetworkTraffic(
            hosts=tuple(
                _count(host.name, self.owner.namespace(number))
                for number, host in enumerate(self.cluster.hosts)
            ),
            links=self.engine.passed(),
        )


def _check_num_hosts(num_hosts: int) -> None:
    if num_hosts > addresses.MAX_HOSTS:
        raise ValueError(
            f"`hosts` are {num_hosts}, and at most {addresses.MAX_HOSTS} can be emulated"
        )


def _new_owner() -> Owner:
    """Return the owner of the emulation of this process, which must be its only one."""
    owner = this_process()
    if owner.folder.exists():
        raise ValueError(
            f"process {owner.pid} already has an emulation, and can have one; end it first"
        )
    return owner


@contextmanager
def emulated(
    cluster: Cluster,
    *,
    kind: EngineKind = EngineKind.AUTO,
    jitter_s: float = 0.0,
    loss: float = 0.0,
    tcp: Tcp = Tcp.STEADY,
    sysctls: Mapping[str, str] = MappingProxyType({}),
    devices: Sequence[int] | None = None,
) -> Iterator[Emulation]:
    """Create the network of a cluster's hosts; remove it at the end, with all processes in it.

    Remains of killed emulations are removed first. By default, rank `r` is on device `r`. `sysctls`
    are settings of the kernel for all hosts, such as `{"net.ipv4.tcp_slow_start_after_idle": "0"}`.

    Raises:
        ValueError: the user is not root, the machine lacks a requirement, the cluster cannot be
            emulated, or this process already has an emulation.
        EmulationError: a step failed.
    """
    check_machine()
    check_sysctls(sysctls)
    spec = network_spec(cluster, jitter_s=jitter_s, loss=loss, tcp=tcp)
    _check_num_hosts(len(spec.hosts))
    choice = choose(kind)
    owner = _new_owner()
    placed = tuple(range(len(cluster)) if devices is None else devices)
    engine = None
    try:
        # One lock for all of it: two emulations must not take the same control network.
        with locked():
            sweep()
            control = make(owner, [host.name for host in spec.hosts], tcp=spec.tcp, sysctls=sysctls)
        settings = mpi_settings(owner, cluster, placed, control=control, cores=available_cores())
        engine = _open(choice.kind, owner, cluster, spec)
        yield Emulation(
            owner=owner,
            cluster=cluster,
            choice=choice,
            engine=engine,
            settings=settings,
            devices=placed,
        )
    finally:
        # A second Ctrl-C here would leave namespaces behind.
        with _undisturbed():
            # The relay first: it holds devices in the namespaces.
            if engine is not None:
                engine.close()
            with locked():
                remove(owner)


def _open(kind: EngineKind, owner: Owner, cluster: Cluster, spec: NetworkSpec) -> Engine:
    if kind is EngineKind.RELAY:
        return RelayEngine(owner, spec)
    return BridgeEngine(owner, cluster, spec, kind=kind)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Block signals that would end this process until the block has finished."""
    # Only the main thread receives signals in Python.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _named(host: str, *, number: int, mounts: Path) -> tuple[str, ...]:
    """Return the prefix of a command that sets the name of its host, and mounts its disks."""
    # $0 and $@: the name is data, never part of the shell's text.
    begin = f'hostname "$0" && number={number} && . {shlex.quote(str(mounts))} && exec "$@"'
    return ("sh", "-c", begin, host)


def _count(host: str, namespace: str) -> HostCount:
    text = run("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", addresses.DEVICE)
    stats = json.loads(text)[0]["stats64"]
    return HostCount(
        host=host,
        sent_bytes=stats["tx"]["bytes"],
        received_bytes=stats["rx"]["bytes"],
    )
