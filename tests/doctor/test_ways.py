"""The ways to the hosts of a cluster are shown, and hosts without one named."""

from collections.abc import Iterable

import pytest

from jaxpipe import topo
from jaxpipe.doctor import Health, judge_ways_to, long_links
from jaxpipe.topo.route import Route

CLUSTER = topo.load("homogeneous:hosts=3")


def test_the_way_to_each_host_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    way = Route(host="here-1", address="10.0.0.2", source="10.0.0.1", interface="eth0")

    def ways(hosts: Iterable[str]) -> dict[str, Route | None]:
        return {host: way if host == "here-1" else None for host in hosts}

    monkeypatch.setattr(long_links, "routes_to", ways)
    shown, lost = judge_ways_to(CLUSTER, here="here-0")
    assert (shown.health, shown.message) == (Health.OK, "here-1: eth0 (10.0.0.1 -> 10.0.0.2)")
    assert lost.message == "no address or no way is known to here-2"
    assert "/etc/hosts" in lost.fix


def test_a_cluster_elsewhere_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_links, "routes_to", dict.fromkeys)
    assert judge_ways_to(CLUSTER, here="here-0") == ()
