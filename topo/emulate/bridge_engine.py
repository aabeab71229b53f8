"""Kernel engines: a bridge connects all hosts, and tc shapes the traffic of each.

::

    namespace of host 0 ─ link0 ═ to0 ─┐
    namespace of host 1 ─ link0 ═ to1 ─┼─ bridge, in a namespace of its own
    namespace of host 2 ─ link0 ═ to2 ─┘

The commands of `jaxpipe.topo.tc` on `link0` shape the packets that leave a host; a token bucket on
the bridge's end limits those that enter a host with a limited NIC. Sources: tc-htb(8), tc-tbf(8).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from math import inf

import numpy as np

from jaxpipe.topo.cluster import Cluster
from jaxpipe.topo.emulate import addresses
from jaxpipe.topo.emulate.commands import ip_batch, run, tc_batch
from jaxpipe.topo.emulate.engine import EngineKind, LinkCount
from jaxpipe.topo.emulate.network_spec import NetworkSpec, Tcp
from jaxpipe.topo.emulate.owner import Owner
from jaxpipe.topo.tc import FIRST_PEER, Command, tc_commands
from jaxpipe.topo.token_bucket import TokenBucket

_HUB = "hub"
_JUMBO = 9000  # jumbo frames: fewer packets for tc to sort
_CLASS = re.compile(r"class htb 1:(\w+) [^\n]*\n Sent (\d+) bytes \d+ pkt \(dropped (\d+),")


class BridgeEngine:
    """Namespaces connected by a bridge, with or without shaping."""

    def __init__(
        self, owner: Owner, cluster: Cluster, spec: NetworkSpec, *, kind: EngineKind
    ) -> None:
        """Connect and shape the namespaces.

        Raises:
            ValueError: jitter or loss is given for an engine that does not support it.
            EmulationError: a step failed.
        """
        commands = shaping_commands(cluster, spec, kind=kind)
        self._owner, self._spec = owner, spec
        self._is_counted = bool(commands)
        hub = owner.namespace(_HUB)
        ip_batch((f"netns add {hub}",))
        mtu = _JUMBO if spec.tcp is Tcp.STEADY else spec.tcp.mtu
        ip_batch(("link add br0 type bridge", "link set br0 up"), namespace=hub)
        for number, host in enumerate(spec.hosts):
            _join(hub, owner.namespace(number), number, mtu=mtu)
            if commands:
                tc_batch(commands[host.name], namespace=owner.namespace(number))
            if commands and host.ingress_bytes_per_s < inf:
                run("ip", "netns", "exec", hub, *_bucket(number, host.ingress_bytes_per_s))

    def passed(self) -> tuple[LinkCount, ...]:
        """Return the traffic of each link; nothing if links are not shaped."""
        return tuple(self._counts()) if self._is_counted else ()

    def close(self) -> None:
        """Do nothing: the kernel's devices end with the namespaces."""

    def _counts(self) -> Iterator[LinkCount]:
        for source in range(len(self._spec.hosts)):
            words = ("tc", "-s", "class", "show", "dev", addresses.DEVICE)
            text = run("ip", "netns", "exec", self._owner.namespace(source), *words)
            counted = {match[1]: match for match in _CLASS.finditer(text)}
            peers = [link.destination for link in self._spec.links if link.source == source]
            # tc prints minor numbers in hexadecimal.
            for minor, destination in enumerate(peers, start=FIRST_PEER):
                match = counted[f"{minor:x}"]
                yield LinkCount(
                    source=source,
                    destination=destination,
                    num_bytes=int(match[2]),
                    dropped_packets=int(match[3]),
                )


def shaping_commands(
    cluster: Cluster, spec: NetworkSpec, *, kind: EngineKind
) -> dict[str, tuple[Command, ...]]:
    """Return the commands that shape the egress of each host; none for the unshaped engine.

    Raises:
        ValueError: jitter or loss is given for an engine that does not support it.
    """
    if kind is not EngineKind.NETEM and (spec.jitter_s or spec.loss):
        raise ValueError(
            f"`--engine {kind.value}` does not support jitter and loss: leave out `--jitter-ms` "
            f"and `--loss`, or use relay or netem"
        )
    if kind is EngineKind.UNSHAPED:
        return {}
    # Without sch_netem, a kernel cannot delay: htb paces alone, as the engine's table says.
    if kind is EngineKind.HTB:
        cluster = replace(cluster, latency_s=np.zeros_like(cluster.latency_s))
    return tc_commands(
        cluster,
        {host.name: ip_address(addresses.data_address(i)) for i, host in enumerate(spec.hosts)},
        device=addresses.DEVICE,
        jitter_s=spec.jitter_s,
        loss=spec.loss,
    )


def _join(hub: str, namespace: str, number: int, *, mtu: int) -> None:
    device = addresses.DEVICE
    ip_batch(
        (
            f"link add to{number} mtu {mtu} type veth peer name {device} netns {namespace}",
            f"link set to{number} master br0 up",
        ),
        namespace=hub,
    )
    ip_batch(
        (
            f"addr add {addresses.data_address(number)}/16 dev {device}",
            f"link set {device} mtu {mtu} up",
        ),
        namespace=namespace,
    )


def _bucket(number: int, bytes_per_s: float) -> tuple[str, ...]:
    return (
        "tc",
        "qdisc",
        "add",
        "dev",
        f"to{number}",
        "root",
        *TokenBucket(bytes_per_s=bytes_per_s).words,
    )
