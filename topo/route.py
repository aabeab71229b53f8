"""The way from this host to others: the interface and the addresses that the kernel takes.

A host has more interfaces than lead to the other hosts of a run: `docker0` has the same address on
every host, and a tunnel leads elsewhere. The kernel knows the way to each host.

Sources: Linux, netdevice(7), SIOCGIFCONF; `/proc/net/if_inet6`.
"""

import array
import fcntl
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.foreign_file import lines_of

_DISCARD_PORT = 9
_SIOCGIFCONF, _SIOCGIFNETMASK = 0x8912, 0x891B
_REQUEST = struct.Struct("16s24x")  # an interface's name, and room for an address
_MOST_INTERFACES = 256
_RESOLVED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way to a host: its address, the one of this host, and the interface of this one.

    `network` is that of the interface, as in `10.0.0.0/24`; both are empty if they are unknown.
    """

    host: str
    address: str
    source: str
    interface: str = ""
    network: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this one."""
        return ipaddress.ip_address(self.source.partition("%")[0]).is_loopback

    def __str__(self) -> str:
        """Return it on one line.

        >>> print(Route(host="a", address="10.0.0.2", source="10.0.0.1", interface="eth0"))
        a: eth0 (10.0.0.1 -> 10.0.0.2)
        """
        return f"{self.host}: {self.interface or '?'} ({self.source} -> {self.address})"


def routes_to(
    hosts: Iterable[str], *, timeout_s: float = _RESOLVED_WITHIN_S
) -> dict[str, Route | None]:
    """Return the way to each host, None where its name has no address, or no way leads there.

    No packet is sent, but the resolver of names may ask a server: all are asked at once, and given
    up after `timeout_s`.

    >>> routes_to(["127.0.0.1"])["127.0.0.1"].is_loopback
    True
    """
    routes: dict[str, Route | None] = dict.fromkeys(hosts)

    def find(host: str) -> None:
        routes[host] = route_to(host)

    # Daemons: a resolver that waits longer keeps nobody from ending.
    threads = [threading.Thread(target=find, args=(host,), daemon=True) for host in routes]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return dict(routes)


def route_to(host: str) -> Route | None:
    """Return the way to a host; None if its name has no address, or no way leads there."""
    try:
        answers = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # the latter of a name that no name can be
        return None
    for family, kind, protocol, _, address in answers:
        try:
            # Connecting a datagram socket sends nothing: the kernel looks the way up.
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                source = str(probe.getsockname()[0])
        except OSError:
            continue
        interface, network = _interface_of(source.partition("%")[0])
        return Route(
            host=host,
            address=str(address[0]),
            source=source,
            interface=interface,
            network=network,
        )
    return None


def _interface_of(address: str) -> tuple[str, str]:
    """Return the interface with an address of this host, and its network; "" if it is unknown."""
    try:
        interfaces = _ipv6_interfaces() if ":" in address else _ipv4_interfaces()
    except OSError:  # not Linux
        return "", ""
    parsed = ipaddress.ip_address(address)
    for name, network in interfaces:
        if network.ip == parsed:
            return name, str(network.network)
    return "", ""


def _ipv4_interfaces() -> list[tuple[str, ipaddress.IPv4Interface]]:
    buffer = array.array("B", bytes(_REQUEST.size * _MOST_INTERFACES))
    pointer, length = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFCONF, struct.pack("iL", length, pointer))
        size = struct.unpack("iL", answer)[0]
        rows = buffer.tobytes()[:size]
        interfaces: list[tuple[str, ipaddress.IPv4Interface]] = []
        for start in range(0, size, _REQUEST.size):
            row = rows[start : start + _REQUEST.size]
            name = row[:16].rstrip(b"\0")
            mask = fcntl.ioctl(probe, _SIOCGIFNETMASK, _REQUEST.pack(name))[20:24]
            text = f"{socket.inet_ntoa(row[20:24])}/{socket.inet_ntoa(mask)}"
            # An alias, such as `eth0:1`, is an address of its interface.
            label = name.decode(errors="replace").partition(":")[0]
            interfaces.append((label, ipaddress.IPv4Interface(text)))
    return interfaces


def _ipv6_interfaces() -> list[tuple[str, ipaddress.IPv6Interface]]:
    rows = (line.split() for line in lines_of(Path("/proc/net/if_inet6").read_text()))
    return [
        (name, ipaddress.IPv6Interface((int(address, 16), int(prefix, 16))))
        for address, _, prefix, _, _, name in rows
    ]


def interfaces_here() -> dict[str, tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]]:
    """Return the addresses of each interface of this host, with their networks; none off Linux.

    >>> "lo" in interfaces_here()
    True
    """
    listed: dict[str, tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]]
    listed = {name: () for _, name in socket.if_nameindex()}
    try:
        for name, network in (*_ipv4_interfaces(), *_ipv6_interfaces()):
            listed[name] = (*listed.get(name, ()), network)
    except OSError:  # not Linux, or without IPv6
        return listed
    return listed


def networks_of(routes: Iterable[Route]) -> tuple[str, ...]:
    """Return the networks through which this host and the others reach each other, of IPv4.

    The network of another host that is not in one of this host's is taken to be as large as that of
    the interface that leads there.

    >>> a = Route(host="a", address="10.0.0.2", source="10.0.0.1", network="10.0.0.0/24")
    >>> b = Route(host="b", address="10.9.1.2", source="10.0.0.1", network="10.0.0.0/24")
    >>> networks_of([a]), networks_of([a, b])
    (('10.0.0.0/24',), ('10.0.0.0/24', '10.9.1.0/24'))
    """
    networks: dict[ipaddress.IPv4Network, None] = {}
    for route in routes:
        if not route.network or route.is_loopback:
            continue
        network = ipaddress.ip_network(route.network)
        if isinstance(network, ipaddress.IPv4Network):
            beyond = ipaddress.IPv4Network((route.address, network.prefixlen), strict=False)
            networks |= {network: None, beyond: None}
    return tuple(map(str, networks))
