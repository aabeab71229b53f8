"""Rounds of a measurement: everyone meets everyone, and nobody meets two at once."""

from itertools import chain, permutations

import pytest
from hypothesis import given

from jaxpipe.topo.probe.rounds import nic_rounds, rounds, trunk_rounds
from tests.topo.strategies import hosts_of_ranks


@given(host_of=hosts_of_ranks())
def test_every_ordered_pair_is_measured_once(host_of: tuple[int, ...]):
    measured = list(chain(*rounds(host_of)))
    assert sorted(measured) == sorted(permutations(range(len(host_of)), 2))


@given(host_of=hosts_of_ranks())
def test_a_host_takes_part_in_one_pair_at_a_time(host_of: tuple[int, ...]):
    for pairs in rounds(host_of):
        assert pairs
        busy = [host for a, b in pairs for host in {host_of[a], host_of[b]}]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize(
    ("num_hosts", "num_rounds"), [(1, 0), (2, 2), (3, 6), (4, 6), (8, 14), (9, 18), (64, 126)]
)
def test_single_devices_need_the_fewest_rounds(num_hosts: int, num_rounds: int):
    assert len(rounds(range(num_hosts))) == num_rounds


@given(host_of=hosts_of_ranks())
def test_a_nic_is_measured_by_all_devices_of_its_host_at_once(host_of: tuple[int, ...]):
    for host, pairs in nic_rounds(host_of):
        sources, destinations = zip(*pairs, strict=True)
        assert {host_of[rank] for rank in sources} == {host}
        assert host not in {host_of[rank] for rank in destinations}
        assert len(set(sources)) == len(set(destinations)) == len(pairs) >= 2


@given(host_of=hosts_of_ranks())
def test_a_trunk_is_measured_by_one_device_of_each_host(host_of: tuple[int, ...]):
    region_of = [f"region-{host % 2}" for host in host_of]
    for (source, destination), pairs in trunk_rounds(host_of, region_of):
        for place, region in enumerate((source, destination)):
            ranks = [pair[place] for pair in pairs]
            assert {region_of[rank] for rank in ranks} == {region}
            assert len({host_of[rank] for rank in ranks}) == len(ranks) >= 2


def test_a_region_of_one_host_has_its_links_alone():
    assert trunk_rounds((0, 0, 1, 2), ("a", "a", "b", "b")) == ()


def test_a_single_device_has_its_nic_alone():
    assert nic_rounds((0, 1, 2)) == nic_rounds((0, 0)) == ()
