"""A cluster as commands for `tc`: run on each host, they make a fast network behave like it.

On each host, what leaves is sorted by the peer's address into a class of its own, paced by htb and
then delayed by netem; a NIC that is shared is the parent of all of them, and so is the host's part
of a trunk of the peers in its region::

    root htb ── 1:1 NIC ─┬─ 1:10  rate, ceil ── netem delay     to the first peer
                         ├─ 1:11  rate, ceil ── netem delay     to the second
                         ├─ 1:f000  trunk ──┬─ 1:12 ...         to the third, in another region
                         │                  └─ 1:13 ...
                         └─ ...
    what goes to no peer: not shaped

Only outgoing packets are shaped: the sender decides each direction, so links may be asymmetric. A
host that limits what enters it (`Host.ingress_bytes_per_s`) is not emulated. No host knows what
others send: each has an even part of the trunk of its region, also while they are silent.

Or, simpler, one token bucket (tbf) limits all that leaves the interface of a host, without delays:
`bucket_commands`.

A command is a list of words. An emulation hands them to `tc` itself; scripts, for other hosts, hold
the same words, quoted.

Sources: tc-htb(8), tc-netem(8), tc-u32(8).
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import ceil, inf

from jaxpipe.foreign_file import lines_of
from jaxpipe.topo.cluster import Cluster, Host
from jaxpipe.topo.names import is_host_name
from jaxpipe.topo.shaping import ShapedPeer, shaped_peers
from jaxpipe.topo.token_bucket import TokenBucket
from jaxpipe.topo.units import ms_from_seconds

Address = IPv4Address | IPv6Address
Command = tuple[str, ...]
"""The words of a command of `tc`, without its own name."""

_PACKET_BYTES = 1500
FIRST_PEER = 0x10
"""The minor number of the class of a host's first peer; its other peers follow."""
_FIRST_TRUNK = 0xF000
"""The minor number of the class of the cluster's first trunk."""
_MAX_PEERS = _FIRST_TRUNK - FIRST_PEER
# 15 characters: IFNAMSIZ less its final 0. None that a shell would interpret.
_DEVICE = re.compile(r"(?!-)[A-Za-z0-9_.@-]{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TcScripts:
    """For one host, the script that shapes its network and the one that undoes it."""

    setup: str
    undo: str


def tc_scripts(
    cluster: Cluster, addresses: Mapping[str, Address], *, device: str
) -> dict[str, TcScripts]:
    """Return the scripts of each host; `device` is the network interface to shape, such as eth0.

    Raises:
        ValueError: as `tc_commands`.
    """
    undo = f"{_line(('qdisc', 'del', 'dev', device, 'root'))} 2>/dev/null || true"
    scripts: dict[str, TcScripts] = {}
    for host, commands in tc_commands(cluster, addresses, device=device).items():
        about = f"{host} ({addresses[host]}) of cluster {cluster.name}"
        peers = [peer.host for peer in shaped_peers(cluster, host)]
        lines = list(_explained(commands, peers))
        scripts[host] = TcScripts(
            setup=_script(f"Shape what leaves {about}.", "set -eu", undo, *lines),
            undo=_script(f"Stop shaping what leaves {about}.", undo),
        )
    return scripts


def tc_commands(
    cluster: Cluster,
    addresses: Mapping[str, Address],
    *,
    device: str,
    jitter_s: float = 0.0,
    loss: float = 0.0,
) -> dict[str, tuple[Command, ...]]:
    """Return the commands that shape the idle `device` of each host, the same one on all of them.

    Each packet comes up to `jitter_s` earlier or later, and of all packets the part `loss` is lost.

    Raises:
        ValueError: a host has no address or shares it, an address has no host, the device's name
            is not one, or there are more than 61,424 peers.
    """
    _check_device(device)
    _check_addresses(cluster, addresses)
    commands: dict[str, tuple[Command, ...]] = {}
    for host in cluster.hosts:
        peers = [
            replace(peer, jitter_s=jitter_s, loss=loss) for peer in shaped_peers(cluster, host.name)
        ]
        parts = _trunk_parts(cluster, host)
        commands[host.name] = tuple(_shape(peers, addresses, device, host=host, trunks=parts))
    return commands


def _trunk_parts(cluster: Cluster, host: Host) -> dict[int, float]:
    """Return the host's part of each trunk that leaves its region [bytes/s]."""
    num_hosts = sum(other.region == host.region for other in cluster.hosts)
    return {
        number: trunk.bytes_per_s / num_hosts
        for number, trunk in enumerate(cluster.trunks)
        if trunk.source == host.region
    }


def bucket_commands(
    cluster: Cluster,
    *,
    device: str,
    bytes_per_s: float | None = None,
    burst_bytes: float | None = None,
    latency_s: float = 0.2,
) -> dict[str, Command]:
    """Return for each host the command that limits the `device` to the speed of its NIC.

    Where the cluster states none, it is that of the fastest link to another host; `bytes_per_s`
    stands for both, and `burst_bytes` for those of the host. Of `burst_bytes` and `latency_s` see
    `TokenBucket`. This is how HiDup's authors limit their network (Zhang et al., SoCC 2022,
    section 6.4).

    Raises:
        ValueError: the name of the device is not one, a number is out of its range, or there is
            one host alone.
    """
    _check_device(device)
    if len(cluster.hosts) == 1:
        raise ValueError(f"cluster {cluster.name!r} has one host, whose NIC nothing crosses")
    return {
        host.name: (
            *("qdisc", "replace", "dev", device, "root"),
            *TokenBucket(
                bytes_per_s=bytes_per_s or _nic_bytes_per_s(cluster, host),
                burst_bytes=burst_bytes or host.burst_bytes or None,
                latency_s=latency_s,
            ).words,
        )
        for host in cluster.hosts
    }


def _nic_bytes_per_s(cluster: Cluster, host: Host) -> float:
    if host.egress_bytes_per_s < inf:
        return host.egress_bytes_per_s
    return max(peer.bytes_per_s for peer in shaped_peers(cluster, host.name))


def _check_device(device: str) -> None:
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"`device` must be a network interface such as eth0, is {device!r}")


def parse_addresses(text: str) -> dict[str, Address]:
    r"""Return the addresses of hosts from lines of a host and its address.

    >>> parse_addresses("# ours\nohio-0 10.0.0.1\n")
    {'ohio-0': IPv4Address('10.0.0.1')}

    Raises:
        ValueError: a line is something else, or a host has two.
    """
    addresses: dict[str, Address] = {}
    for number, line in enumerate(lines_of(text), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not is_host_name(words[0]):
            raise ValueError(f"line {number} of the addresses must be a host and an address")
        if words[0] in addresses:
            raise ValueError(f"line {number} of the addresses: {words[0]!r:.80} has one already")
        try:
            addresses[words[0]] = _address(words[1])
        except ValueError:
            raise ValueError(
                f"line {number} of the addresses must be a host and an address such as 10.0.0.1 or "
                "fd00::1; its second word is none"
            ) from None
    return addresses


def _address(text: str) -> Address:
    address = ip_address(text)
    if address.version == 6 and address.scope_id is not None:
        raise ValueError  # a scope may hold any character, and the filter cannot match it
    return address


def _check_addresses(cluster: Cluster, addresses: Mapping[str, Address]) -> None:
    names = [host.name for host in cluster.hosts]
    if len(names) - 1 > _MAX_PEERS:
        raise ValueError(
            f"cluster {cluster.name!r} has {len(names)} hosts, and tc tells {_MAX_PEERS} peers of "
            "a host apart"
        )
    missing = [name for name in names if name not in addresses]
    if missing:
        raise ValueError(
            f"host {missing[0]!r} has no address ({len(missing)} hosts have none); add a line such "
            f"as `{missing[0]} 10.0.0.1`"
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


def _explained(commands: Sequence[Command], peers: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a script, the three of a peer (class, queue, filter) below its name."""
    first = len(commands) - 3 * len(peers)
    for number, command in enumerate(commands):
        peer, part = divmod(number - first, 3)
        if peer >= 0 and part == 0:
            yield f"# to {peers[peer]}"
        yield _line(command)


def _line(command: Command) -> str:
    return shlex.join(("tc", *command))


def _shape(
    peers: Sequence[ShapedPeer],
    addresses: Mapping[str, Address],
    device: str,
    *,
    host: Host,
    trunks: Mapping[int, float],
) -> Iterator[Command]:
    on, nic = ("add", "dev", device), host.egress_bytes_per_s
    yield ("qdisc", *on, "root", "handle", "1:", "htb")
    parent = "1:"
    if nic < inf:
        parent = "1:1"
        pace = _pace(nic, nic, burst_bytes=host.burst_bytes)
        yield ("class", *on, "parent", "1:", "classid", parent, "htb", *pace)
    sharing = Counter(peer.trunk for peer in peers)
    for number, part in trunks.items():
        class_id = f"1:{_FIRST_TRUNK + number:x}"
        pace = _pace(min(part, nic * sharing[number] / len(peers)), min(part, nic))
        yield ("class", *on, "parent", parent, "classid", class_id, "htb", *pace)
    # Hexadecimal, as tc reads minor numbers.
    for minor, peer in enumerate(peers, start=FIRST_PEER):
        # Children may borrow up to `ceil`; what they are promised must not add up to more than
        # the NIC has, or htb would exceed it.
        above, room = parent, nic / len(peers)
        if peer.trunk is not None:
            above = f"1:{_FIRST_TRUNK + peer.trunk:x}"
            room = min(room, trunks[peer.trunk] / sharing[peer.trunk])
        promised = min(peer.bytes_per_s, room)
        address, class_id = addresses[peer.host], f"1:{minor:x}"
        protocol, match = ("ip", "ip") if address.version == 4 else ("ipv6", "ip6")
        pace = _pace(promised, peer.bytes_per_s)
        yield ("class", *on, "parent", above, "classid", class_id, "htb", *pace)
        yield ("qdisc", *on, "parent", class_id, *_queue(peer))
        which = ("protocol", protocol, "prio", str(address.version), "u32", "match", match)
        there = f"{address}/{address.max_prefixlen}"
        yield ("filter", *on, "parent", "1:", *which, "dst", there, "flowid", class_id)


def _pace(rate: float, ceiling: float, *, burst_bytes: float = 0.0) -> Command:
    """Return htb's words: a rate, and what may go at once, by default a millisecond of it."""
    # At least ten packets: htb wakes up once per tick, and a smaller burst would lower the rate.
    burst = max(10 * _PACKET_BYTES, round(ceiling / 1e3), round(burst_bytes))
    rates = ("rate", f"{round(rate * 8)}bit", "ceil", f"{round(ceiling * 8)}bit")
    return (*rates, "burst", f"{burst}b", "cburst", f"{burst}b", "quantum", f"{40 * _PACKET_BYTES}")


def _queue(peer: ShapedPeer) -> Command:
    """Return what holds the packets of a class: all that are on their way, and as many to wait."""
    # netem holds packets in flight in the same queue: a limit without them would drop at full rate.
    on_the_way = ceil(peer.latency_s * peer.bytes_per_s / _PACKET_BYTES)
    limit = ("limit", str(1000 + 2 * on_the_way))
    if not (peer.latency_s or peer.jitter_s or peer.loss):
        return ("pfifo", *limit)
    jitter = (f"{ms_from_seconds(peer.jitter_s):.6g}ms",) if peer.jitter_s else ()
    loss = ("loss", f"{100 * peer.loss:.6g}%") if peer.loss else ()
    return ("netem", "delay", f"{ms_from_seconds(peer.latency_s):.6g}ms", *jitter, *loss, *limit)
