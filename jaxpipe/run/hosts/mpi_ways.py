"""The settings with which MPI takes the ways that lead to the other hosts.

Left to itself, Open MPI connects hosts by any two interfaces, such as two `docker0` with the same
address, each on its own host::

    run.interface = "eth0"           that interface, also for UCX and libfabric
    run.interface = "eth0,ens5"      their networks: a host may lack the first name
    ways of IPv4, 10.0.0.0/24        interfaces in this network, whatever their names
    ways of IPv6 alone               no IPv4: Open MPI takes no networks of IPv6

Sources: Open MPI 5, "TCP"; `prte_info --all`; UCX and libfabric (fi_tcp(7)), environment variables.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.blas.chosen_products import SWITCH
from jaxpipe.topo.route import Route, networks_of

_INTERFACES = ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include")
"""Of the messages between ranks, and of those that start them."""
_WITHOUT_IPV4 = (
    ("OMPI_MCA_btl_tcp_disable_family", "4"),
    ("PRTE_MCA_oob_tcp_disable_ipv4_family", "1"),
)
_NAMES = "UCX_NET_DEVICES"
_FIRST_NAME = "FI_TCP_IFACE"
EXPORTED = (_NAMES, _FIRST_NAME, SWITCH)
"""The variables that `mpirun` hands on to other hosts only when asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiWays:
    """The settings of MPI, and how they are called in a line."""

    settings: tuple[tuple[str, str], ...]
    text: str


Networks = tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]


def check_interface(interface: str | None, here: Mapping[str, Networks]) -> None:
    """Check that `run.interface` names what this host has; `here` are its interfaces, if known.

    The other hosts may have other names, so one of several is enough.

    Raises:
        ConfigError: it names none, or a network of IPv6, which Open MPI takes for a name.
    """
    if interface is None or not here:
        return
    words = interface.split(",")
    six = [word for word in words if "/" in word and ":" in word]
    if six:
        raise ConfigError(
            f"`run.interface` must have networks of IPv4 or names, is {interface!r:.80}: Open MPI "
            f"takes no networks of IPv6; give the name of the interface in place of {six[0]}"
        )
    if not any(_is_here(word, here) for word in words):
        shown = ", ".join(
            f"{name} ({', '.join(map(str, networks))})" if networks else name
            for name, networks in here.items()
        )
        raise ConfigError(
            f"`run.interface` must name an interface or a network of this host, is "
            f"{interface!r:.80}; it has {shown:.300}"
        )


def _is_here(word: str, here: Mapping[str, Networks]) -> bool:
    if "/" not in word:
        return word in here
    try:
        network = ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False
    return any(address.ip in network for networks in here.values() for address in networks)


def mpi_ways(
    interface: str | None,
    routes: Sequence[Route],
    here: Mapping[str, Networks] = MappingProxyType({}),
) -> MpiWays:
    """Return the ways that MPI takes: by `run.interface`, or the known ones to the other hosts.

    `here` are the interfaces of this host.

    >>> mpi_ways("10.0.0.0/24", ()).text, mpi_ways(None, ()).text
    ('10.0.0.0/24', 'any interface: no way to the other hosts is known')
    >>> six = Route(host="a", address="fd00::2", source="fd00::1", network="fd00::/64")
    >>> print(mpi_ways(None, [six]).text)
    IPv6 alone: fd00::/64

    Raises:
        ConfigError: several interfaces are named, and no network of IPv4 is known of them.
    """
    included = _included(interface, routes, here)
    if included:
        settings = [(name, included) for name in _INTERFACES]
        names = [] if interface is None else [n for n in interface.split(",") if "/" not in n]
        if names:  # neither of them knows networks
            settings += [(_NAMES, ",".join(names)), (_FIRST_NAME, names[0])]
        text = included if interface in (None, included) else f"{interface}: {included}"
        return MpiWays(settings=tuple(settings), text=text)
    far = [route for route in routes if not route.is_loopback]
    if far and all(":" in route.source for route in far):
        networks = dict.fromkeys(route.network or route.source for route in far)
        return MpiWays(settings=_WITHOUT_IPV4, text=f"IPv6 alone: {', '.join(networks)}")
    return MpiWays(settings=(), text="any interface: no way to the other hosts is known")


def _included(interface: str | None, routes: Sequence[Route], here: Mapping[str, Networks]) -> str:
    """Return what MPI includes: one name, or networks; "" for all."""
    words = [] if interface is None else interface.split(",")
    names = [word for word in words if "/" not in word]
    if interface is not None and (len(words) == 1 or not names):
        return interface
    networks = [word for word in words if "/" in word]
    networks += (
        str(address.network)
        for name in names
        for address in here.get(name, ())
        if isinstance(address, ipaddress.IPv4Interface)
    )
    networks += networks_of(way for way in routes if interface is None or way.interface in names)
    # Of a name that its host lacks, PRRTE ends (5.0.11: a segmentation fault, or "No network
    # interfaces were found"); a network that it lacks is passed over.
    if interface is not None and not networks:
        raise ConfigError(
            f"`run.interface` must be one name where no network of IPv4 is known, is "
            f"{interface!r:.80}: Open MPI ends on a host that lacks the first of several; give the "
            "interfaces the same name on all hosts"
        )
    return ",".join(dict.fromkeys(networks))
