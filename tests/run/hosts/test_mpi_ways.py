"""The settings of MPI name the interfaces or networks that lead to the other hosts."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.run.hosts.mpi_ways import EXPORTED, mpi_ways
from jaxpipe.topo.route import Route

BTL, PRTE = "OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"


def route(address: str) -> Route:
    """Return the way to an address from the one before it, in a network of 64 or 24 bits."""
    there = ipaddress.ip_address(address)
    bits = 24 if there.version == 4 else 64
    network = ipaddress.ip_network(f"{address}/{bits}", strict=False)
    return Route(host=address, address=address, source=str(there - 1), network=str(network))


v4 = st.integers(2, 250).map(lambda n: route(f"10.0.{n}.{n}"))
v6 = st.integers(2, 250).map(lambda n: route(f"fd00:{n:x}::{n:x}"))


@given(st.lists(v4 | v6, max_size=5))
def test_networks_of_ipv4_are_included_and_without_any_ipv4_is_off(routes: list[Route]) -> None:
    """Open MPI takes a network of IPv6 for the name of an interface that no host has."""
    settings = dict(mpi_ways(None, routes).settings)
    fours = [way for way in routes if ":" not in way.address]
    if fours:
        assert settings == {BTL: settings[BTL], PRTE: settings[BTL]}
        networks = [ipaddress.ip_network(network) for network in settings[BTL].split(",")]
        assert all(network.version == 4 for network in networks)
        for way in fours:
            assert any(ipaddress.ip_address(way.address) in network for network in networks)
    elif routes:
        assert settings == {
            "OMPI_MCA_btl_tcp_disable_family": "4",
            "PRTE_MCA_oob_tcp_disable_ipv4_family": "1",
        }
    else:
        assert settings == {}


def test_a_named_interface_is_that_of_all_libraries() -> None:
    assert dict(mpi_ways("eth0,10.0.0.0/24,eth1", [route("10.0.9.9")]).settings) == {
        BTL: "eth0,10.0.0.0/24,eth1",
        PRTE: "eth0,10.0.0.0/24,eth1",
        "UCX_NET_DEVICES": "eth0,eth1",
        "FI_TCP_IFACE": "eth0",
    }
    networks_alone = dict(mpi_ways("10.0.0.0/24", ()).settings)
    assert not set(EXPORTED) & networks_alone.keys()


def test_this_host_is_no_way() -> None:
    here = Route(host="a", address="::1", source="::1", network="::1/128")
    assert mpi_ways(None, [here]).settings == ()
