"""The way to a host is the one that the kernel takes; no packet is sent."""

import socket
import time

import pytest

from jaxpipe.topo import route
from jaxpipe.topo.route import Route, networks_of, route_to, routes_to


def test_this_host_is_reached_by_loopback() -> None:
    for address in ("127.0.0.1", "::1"):
        way = route_to(address)
        if way is None:
            assert address == "::1", "no IPv4 here"
            continue
        assert (way.address, way.source) == (address, address)
        assert way.is_loopback
        assert networks_of([way]) == ()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "", "a" * 300, "a..b", "\udcff"])
def test_a_name_without_an_address_has_no_way(host: str) -> None:
    way = route_to(host)
    assert way is None or way.is_loopback  # "" is any address


def test_a_resolver_that_never_answers_costs_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(host: str, *_: object, **__: object) -> list[object]:
        time.sleep(3.0 if host == "slow" else 0.0)
        raise OSError(host)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    begin_s = time.monotonic()
    assert routes_to(["slow", "quick"], timeout_s=0.2) == {"slow": None, "quick": None}
    assert time.monotonic() - begin_s < 2.0


def test_networks_are_named_once_and_unknown_ones_left_out() -> None:
    one = Route(host="a", address="10.0.0.2", source="10.0.0.1", network="10.0.0.0/24")
    other = Route(host="b", address="10.0.0.3", source="10.0.0.1", network="10.0.0.0/24")
    six = Route(host="c", address="fd00::2", source="fd00::1", network="fd00::/64")
    unknown = Route(host="d", address="10.5.0.1", source="10.5.0.2")
    assert networks_of([one, other, six, unknown]) == ("10.0.0.0/24",)


def test_the_interface_of_every_address_of_this_machine_is_found() -> None:
    listed = route._ipv4_interfaces()  # pyright: ignore[reportPrivateUsage]
    names = {name for _, name in socket.if_nameindex()}
    assert "127.0.0.1" in {str(network.ip) for _, network in listed}
    assert {name for name, _ in listed} <= names
