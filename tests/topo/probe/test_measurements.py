"""From measurements to clusters, on networks of which the truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from jaxpipe.topo import Cluster, Trunk, load
from jaxpipe.topo.host_tcp import TcpSettings
from jaxpipe.topo.probe.measurements import (
    Measurements,
    NicSample,
    ProbeSettings,
    TrunkSample,
    advice_of,
    cluster_of,
    regions_of,
    spread_of,
)
from jaxpipe.topo.probe.rounds import nic_rounds


def measured(cluster: Cluster, ranks: list[int], *, noise: float = 0.0) -> Measurements:
    """What a probe would measure on a cluster, rank `r` being device `ranks[r]`."""
    random = np.random.default_rng(0)
    pairs = np.ix_(ranks, ranks)
    shape = (len(ranks), len(ranks))
    latency = cluster.latency_s[pairs] * (1 + noise * random.random(shape))
    alone = cluster.alone_bytes_per_s[pairs] * (1 - noise * random.random(shape))
    np.fill_diagonal(alone, 0.0)  # nobody measures the way to itself
    host_of = [cluster.host_of[device] for device in ranks]
    samples = [
        NicSample(
            host=cluster.hosts[host].name,
            pairs=chosen,
            bytes_per_s=min(
                sum(alone[a, b] for a, b in chosen), cluster.hosts[host].egress_bytes_per_s
            ),
        )
        for host, chosen in nic_rounds(host_of)
    ]
    turned = [replace(s, pairs=tuple((b, a) for a, b in s.pairs)) for s in samples]
    return Measurements(
        hosts=tuple(cluster.hosts[host].name for host in host_of),
        latency_s=latency,
        latency_spread_s=noise * latency,
        bytes_per_s=alone,
        spread_bytes_per_s=noise * alone,
        egress=tuple(samples),
        ingress=tuple(turned),
    )


def islands(cluster: Cluster) -> list[set[str]]:
    """The hosts of each region, in the order of regions."""
    return [
        {host.name for host in cluster.hosts if host.region == region} for region in cluster.regions
    ]


@pytest.mark.parametrize("name", ["case1-datacenter", "homogeneous:hosts=9", "two-region"])
def test_a_network_without_noise_is_found_as_it_is(name: str):
    truth = load(name)
    found = cluster_of(measured(truth, list(range(len(truth)))), name=name)
    assert [device.name for device in found.devices] == [device.name for device in truth.devices]
    assert np.allclose(found.latency_s, truth.latency_s, rtol=1e-3)
    host_of = np.array(truth.host_of)
    # Inside a host a probe measures pairs alone only.
    counted = np.where(
        host_of[:, None] == host_of, truth.alone_bytes_per_s, truth.bandwidth_bytes_per_s
    )
    assert np.allclose(found.bandwidth_bytes_per_s, counted, rtol=1e-3)
    assert np.allclose(found.alone_bytes_per_s, truth.alone_bytes_per_s, rtol=1e-3)
    assert islands(found) == islands(truth)
    limits = [host.egress_bytes_per_s for host in found.hosts]
    assert limits == [host.egress_bytes_per_s for host in truth.hosts]


def test_what_two_regions_share_is_a_trunk_and_a_pair_has_all_of_it_alone():
    measurements = measured(load("two-region"), [0, 1, 2, 3])
    # Two pairs of hosts at once had half of the trunk each.
    speeds = measurements.bytes_per_s.copy()
    speeds[:2, 2:] = 70e6
    regions = regions_of(replace(measurements, bytes_per_s=speeds))
    there, back = (
        (regions[measurements.hosts[a]], regions[measurements.hosts[b]])
        for a, b in ((0, 2), (2, 0))
    )
    samples = (
        TrunkSample(regions=there, num_pairs=2, alone_bytes_per_s=140e6, bytes_per_s=139e6),
        TrunkSample(regions=back, num_pairs=2, alone_bytes_per_s=140e6, bytes_per_s=270e6),
    )
    found = cluster_of(replace(measurements, bytes_per_s=speeds, trunks=samples), name="two")
    assert found.trunks == (Trunk(source=there[0], destination=there[1], bytes_per_s=139e6),)
    assert (found.alone_bytes_per_s[:2, 2:] == 140e6).all()
    assert np.array_equal(found.alone_bytes_per_s[2:], load("two-region").alone_bytes_per_s[2:])


def test_ranks_in_turns_over_hosts_are_put_together_by_host():
    truth = load("case1-datacenter")
    turns = sorted(range(64), key=lambda device: device % 8)
    found = cluster_of(measured(truth, turns), name="turns")
    assert [host.name for host in found.hosts] == [host.name for host in truth.hosts]
    assert np.allclose(found.alone_bytes_per_s, truth.alone_bytes_per_s)


@pytest.mark.parametrize("name", ["case3-universities", "fluidstack-2region"])
def test_islands_are_found_under_noise(name: str):
    truth = load(name)
    found = cluster_of(measured(truth, list(range(len(truth))), noise=0.15), name=name)
    assert islands(found) == islands(truth)


def test_one_rank_is_a_cluster():
    found = cluster_of(measured(load("homogeneous:hosts=1"), [0]), name="one")
    assert (len(found), found.regions) == (1, ("island-0",))


def test_spread_follows_the_devices():
    truth = load("two-region")
    measurements = measured(truth, [3, 1, 0, 2], noise=0.1)
    spread = spread_of(measurements, ProbeSettings())
    assert spread.latency_spread_s[0][1] == pytest.approx(
        measurements.latency_spread_s[0, 1], rel=1e-3
    )
    assert spread.large_bytes == 8 * 2**20


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("large_repeats", 0, "`large_repeats` must be at least 1, is 0"),
        ("small_bytes", 0, "`small_bytes` must be at least 1, is 0"),
        ("warmup", -1, "`warmup` must not be negative, is -1"),
    ],
)
def test_wrong_settings_are_refused(field: str, value: int, words: str):
    with pytest.raises(ValueError, match=words):
        replace(ProbeSettings(), **{field: value})


def test_hosts_that_restart_connections_are_written_down_and_advised():
    truth = load("case5-worldwide")
    default = TcpSettings(
        slow_start_after_idle=True,
        congestion_control="cubic",
        largest_receive_bytes=2**28,
        largest_send_bytes=2**28,
    )
    fixed = replace(default, slow_start_after_idle=False)
    found = measured(truth, [0, 20, 40])
    one_of_three = replace(found, tcp=(fixed, None, default))
    assert cluster_of(one_of_three, name="far").restart_bytes == 14480
    (advice,) = advice_of(one_of_three)
    assert advice.command.endswith("tcp_slow_start_after_idle=0")
    for settings in ((fixed,) * 3, (None,) * 3):
        well = replace(found, tcp=settings)
        assert cluster_of(well, name="far").restart_bytes is None
        assert advice_of(well) == ()
