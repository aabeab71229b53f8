"""The settings with which MPI takes the ways that lead to the other hosts.

Left to itself, Open MPI connects hosts by any two interfaces, such as two `docker0` with the same
address, each on its own host::

    run.interface = "eth0"           that interface, also for UCX and libfabric
    ways of IPv4, 10.0.0.0/24        interfaces in this network, whatever their names
    ways of IPv6 alone               no IPv4: Open MPI takes no networks of IPv6

Sources: Open MPI 5, "TCP"; `prte_info --all`; UCX and libfabric (fi_tcp(7)), environment variables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpipe.topo.route import Route, networks_of

_INTERFACES = ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include")
"""Of the messages between ranks, and of those that start them."""
_WITHOUT_IPV4 = (
    ("OMPI_MCA_btl_tcp_disable_family", "4"),
    ("PRTE_MCA_oob_tcp_disable_ipv4_family", "1"),
)
_NAMES = "UCX_NET_DEVICES"
_FIRST_NAME = "FI_TCP_IFACE"
EXPORTED = (_NAMES, _FIRST_NAME)
"""The variables that `mpirun` hands on to other hosts only when asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiWays:
    """The settings of MPI, and how they are called in a line."""

    settings: tuple[tuple[str, str], ...]
    text: str


def mpi_ways(interface: str | None, routes: Sequence[Route]) -> MpiWays:
    """Return the ways that MPI takes: by `run.interface`, or the known ones to the other hosts.

    >>> mpi_ways("10.0.0.0/24", ()).text, mpi_ways(None, ()).text
    ('10.0.0.0/24', 'any interface: no way to the other hosts is known')
    >>> six = Route(host="a", address="fd00::2", source="fd00::1", network="fd00::/64")
    >>> print(mpi_ways(None, [six]).text)
    IPv6 alone: fd00::/64
    """
    included = interface or ",".join(networks_of(routes))
    if included:
        settings = [(name, included) for name in _INTERFACES]
        names = [] if interface is None else [n for n in interface.split(",") if "/" not in n]
        if names:  # neither of them knows networks
            settings += [(_NAMES, ",".join(names)), (_FIRST_NAME, names[0])]
        return MpiWays(settings=tuple(settings), text=included)
    far = [route for route in routes if not route.is_loopback]
    if far and all(":" in route.source for route in far):
        networks = dict.fromkeys(route.network or route.source for route in far)
        return MpiWays(settings=_WITHOUT_IPV4, text=f"IPv6 alone: {', '.join(networks)}")
    return MpiWays(settings=(), text="any interface: no way to the other hosts is known")
