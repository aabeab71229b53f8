"""The settings of MPI name the interfaces or networks that lead to the other hosts."""

import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import ConfigError
from jaxpipe.run.hosts.mpi_ways import EXPORTED, check_interface, mpi_ways
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
    assert dict(mpi_ways("eth0", [route("10.0.9.9")]).settings) == {
        BTL: "eth0",
        PRTE: "eth0",
        "UCX_NET_DEVICES": "eth0",
        "FI_TCP_IFACE": "eth0",
    }
    networks_alone = dict(mpi_ways("10.0.0.0/24", ()).settings)
    assert not set(EXPORTED) & networks_alone.keys()


def test_several_names_are_given_as_networks() -> None:
    """Open MPI ends on a host that lacks the first of several names."""
    far = replace(route("10.9.1.9"), interface="eth0", network="10.0.0.0/24")
    ways = mpi_ways("ens5,eth0,10.3.0.0/16", [far, route("10.7.0.7")], HERE)
    networks = "10.3.0.0/16,10.0.0.0/24,10.9.1.0/24"
    assert ways.text == f"ens5,eth0,10.3.0.0/16: {networks}"
    assert dict(ways.settings) == {
        BTL: networks,
        PRTE: networks,
        "UCX_NET_DEVICES": "ens5,eth0",
        "FI_TCP_IFACE": "ens5",
    }
    with pytest.raises(ConfigError, match=r"`run.interface` must be one name .* is 'tun0,tun1'"):
        mpi_ways("tun0,tun1", [far], HERE)


HERE = {
    "lo": (ipaddress.IPv4Interface("127.0.0.1/8"),),
    "eth0": (ipaddress.IPv4Interface("10.0.0.1/24"), ipaddress.IPv6Interface("fd00::1/64")),
    "tun0": (),
}


@pytest.mark.parametrize(
    "interface",
    [None, "eth0", "ens5,eth0", "tun0", "10.0.0.0/24", "10.0.0.9/8,x", "no0,10.0.0.1/32"],
)
def test_an_interface_of_this_host_is_taken(interface: str | None) -> None:
    check_interface(interface, HERE)
    check_interface("no0", {})  # unknown: not Linux


@pytest.mark.parametrize("interface", ["no0", "10.0.1.0/24", "eth0:1", "10.0.0.0/x", "x,y", "ETH0"])
def test_an_interface_that_this_host_lacks_is_refused(interface: str) -> None:
    with pytest.raises(
        ConfigError, match=r"`run.interface` must .*eth0 \(10.0.0.1/24, fd00::1/64\)"
    ):
        check_interface(interface, HERE)


def test_a_network_of_ipv6_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no networks of IPv6; give the name"):
        check_interface("eth0,fd00::/64", HERE)


def test_this_host_is_no_way() -> None:
    here = Route(host="a", address="::1", source="::1", network="::1/128")
    assert mpi_ways(None, [here]).settings == ()
