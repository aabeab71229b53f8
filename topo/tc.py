"""A cluster as scripts for `tc`: run on each host, they make a fast network behave like it.

On each host, what leaves is sorted by the peer's address into a class of its own, paced by htb and
then delayed by netem; a NIC that is shared is the parent of all of them::

    root htb ── 1:1 NIC ─┬─ 1:10  rate, ceil ── netem delay     to the first peer
                         ├─ 1:11  rate, ceil ── netem delay     to the second
                         └─ ...
    what goes to no peer: not shaped

Only outgoing packets are shaped: the sender decides each direction, so links may be asymmetric. A
host that limits what enters it (`Host.ingress_bytes_per_s`) is not emulated.

Sources: tc-htb(8), tc-netem(8), tc-u32(8).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import ceil, inf

from topo.cluster import Cluster
from topo.shaping import ShapedPeer, shaped_peers
from topo.units import ms_from_seconds

Address = IPv4Address | IPv6Address

_PACKET_BYTES = 1500
FIRST_PEER = 0x10
"""The minor number of the class of a host's first peer; its other peers follow."""
_MAX_PEERS = 0xFFFF - FIRST_PEER
# 15 characters: IFNAMSIZ less its final 0. None that a shell would interpret.
_DEVICE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TcScripts:
    """For one host, the script that shapes its network and the one that undoes it."""

    setup: str
    undo: str


def tc_scripts(
    cluster: Cluster,
    addresses: Mapping[str, Address],
    *,
    device: str,
    jitter_s: float = 0.0,
    loss: float = 0.0,
) -> dict[str, TcScripts]:
    """Return the scripts of each host; `device` is the network interface to shape, such as eth0.

    Each packet comes up to `jitter_s` earlier or later, and of all packets the part `loss` is lost.

    Raises:
        ValueError: a host has no address or shares it, an address has no host, the device's name
            is not one, or there are more than 65,519 peers.
    """
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"`device` must be a network interface such as eth0, is {device!r}")
    _check_addresses(cluster, addresses)
    scripts: dict[str, TcScripts] = {}
    for host in cluster.hosts:
        about = f"{host.name} ({addresses[host.name]}) of cluster {cluster.name}"
        undo = f"tc qdisc del dev {device} root 2>/dev/null || true"
        peers = [
            replace(peer, jitter_s=jitter_s, loss=loss) for peer in shaped_peers(cluster, host.name)
        ]
        lines = _shape(peers, addresses, device, host.egress_bytes_per_s)
        scripts[host.name] = TcScripts(
            setup=_script(f"Shape what leaves {about}.", "set -eu", undo, *lines),
            undo=_script(f"Stop shaping what leaves {about}.", undo),
        )
    return scripts


def parse_addresses(text: str) -> dict[str, Address]:
    r"""Return the addresses of hosts from lines of a host and its address.

    >>> parse_addresses("# ours\nohio-0 10.0.0.1\n")
    {'ohio-0': IPv4Address('10.0.0.1')}

    Raises:
        ValueError: a line is something else, or a host has two.
    """
    addresses: dict[str, Address] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ValueError(
                f"line {number} of the addresses must be a host and an address, is {line!r}"
            )
        if words[0] in addresses:
            raise ValueError(f"line {number} of the addresses: {words[0]!r} has one already")
        try:
            addresses[words[0]] = ip_address(words[1])
        except ValueError as error:
            raise ValueError(f"line {number} of the addresses: {error}") from error
    return addresses


def _check_addresses(cluster: Cluster, addresses: Mapping[str, Address]) -> None:
    names = [host.name for host in cluster.hosts]
    if len(names) - 1 > _MAX_PEERS:
        raise ValueError(f"tc tells {_MAX_PEERS} peers apart; the cluster has {len(names)} hosts")
    missing = [name for name in names if name not in addresses]
    if missing:
        raise ValueError(
            f"each host needs an address: {missing[0]!r} has none ({len(missing)} without); add a "
            f"line such as `{missing[0]} 10.0.0.1`"
        )
    unknown = sorted(set(addresses) - set(names))
    if unknown:
        raise ValueError(f"cluster {cluster.name!r} has no host {unknown[0]!r}: it has {names}")
    holder: dict[Address, str] = {}
    for name in names:
        other = holder.setdefault(addresses[name], name)
        if other != name:
            raise ValueError(f"{addresses[name]} is the address of {other!r} and of {name!r}")


def _script(title: str, *lines: str) -> str:
    return "\n".join(("#!/bin/sh", f"# {title} Needs root.", *lines, ""))


def _shape(
    peers: Sequence[ShapedPeer], addresses: Mapping[str, Address], device: str, nic: float
) -> Iterator[str]:
    yield f"tc qdisc add dev {device} root handle 1: htb"
    parent = "1:"
    if nic < inf:
        parent = "1:1"
        yield f"tc class add dev {device} parent 1: classid {parent} htb {_pace(nic, nic)}"
    # Hexadecimal, as tc reads minor numbers.
    for minor, peer in enumerate(peers, start=FIRST_PEER):
        # Children may borrow up to `ceil`; what they are promised must not add up to more than
        # the NIC has, or htb would exceed it.
        promised = min(peer.bytes_per_s, nic / len(peers))
        address = addresses[peer.host]
        protocol, match = ("ip", "ip") if address.version == 4 else ("ipv6", "ip6")
        yield f"# to {peer.host}"
        yield (
            f"tc class add dev {device} parent {parent} classid 1:{minor:x} htb "
            f"{_pace(promised, peer.bytes_per_s)}"
        )
        yield f"tc qdisc add dev {device} parent 1:{minor:x} {_queue(peer)}"
        yield (
            f"tc filter add dev {device} parent 1: protocol {protocol} prio {address.version} "
            f"u32 match {match} dst {address}/{address.max_prefixlen} flowid 1:{minor:x}"
        )


def _pace(rate: float, ceiling: float) -> str:
    """Return htb's words: a rate, and what may go at once, which is a millisecond of it."""
    # At least ten packets: htb wakes up once per tick, and a smaller burst would lower the rate.
    burst = max(10 * _PACKET_BYTES, round(ceiling / 1e3))
    return (
        f"rate {round(rate * 8)}bit ceil {round(ceiling * 8)}bit "
        f"burst {burst}b cburst {burst}b quantum {40 * _PACKET_BYTES}"
    )


def _queue(peer: ShapedPeer) -> str:
    """Return what holds the packets of a class: all that are on their way, and as many to wait."""
    # netem holds packets in flight in the same queue: a limit without them would drop at full rate.
    on_the_way = ceil(peer.latency_s * peer.bytes_per_s / _PACKET_BYTES)
    limit = 1000 + 2 * on_the_way
    if not (peer.latency_s or peer.jitter_s or peer.loss):
        return f"pfifo limit {limit}"
    jitter = f" {ms_from_seconds(peer.jitter_s):.6g}ms" if peer.jitter_s else ""
    loss = f" loss {100 * peer.loss:.6g}%" if peer.loss else ""
    return f"netem delay {ms_from_seconds(peer.latency_s):.6g}ms{jitter}{loss} limit {limit}"
