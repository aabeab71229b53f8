"""The all-gather around a ring, held against closed forms."""

import dataclasses

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.baselines.published.rings import all_gather_s
from jaxpipe.topo import Cluster


def _cluster(size: int, *, slow: int | None = None, latency_s: float = 0.01) -> Cluster:
    even = topo.load(f"homogeneous:hosts={size},delay_ms=0,bandwidth_gbps=8")
    bandwidth = np.array(even.bandwidth_bytes_per_s)
    latency = np.full((size, size), latency_s)
    np.fill_diagonal(latency, 0.0)
    if slow is not None:
        bandwidth[slow, (slow + 1) % size] /= 10
    return dataclasses.replace(
        even, latency_s=latency, bandwidth_bytes_per_s=bandwidth, alone_bytes_per_s=bandwidth
    )


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_an_even_ring_takes_a_latency_and_a_part_for_each_round(size: int):
    seconds = all_gather_s(_cluster(size), [range(size)], 1e8, nic_efficiency=1.0)
    assert seconds == pytest.approx((size - 1) * (0.01 + 0.1))


def test_long_hops_count_once_each():
    cluster = _cluster(4, latency_s=0.0)
    latency = np.array(cluster.latency_s)
    latency[0, 1], latency[2, 3] = 5.0, 3.0
    cluster = dataclasses.replace(cluster, latency_s=latency)
    # The part that starts before both long hops passes both; no round takes 5 s three times.
    seconds = all_gather_s(cluster, [range(4)], 1e8, nic_efficiency=1.0)
    assert seconds == pytest.approx(8.0 + 3 * 0.1)


def test_parts_queue_before_a_slow_hop():
    seconds = all_gather_s(_cluster(6, slow=2, latency_s=0.0), [range(6)], 1e8, nic_efficiency=1.0)
    # All five other parts pass the slow hop; the last two hops to the end are fast.
    assert seconds >= 5 * 1.0
    assert seconds <= 5 * 1.0 + 4 * 0.1


def test_rings_share_the_nic_of_a_host():
    cluster = topo.load("case1-datacenter")
    one = all_gather_s(cluster, [(0, 8)], 1e8, nic_efficiency=1.0)
    four = all_gather_s(cluster, [(i, 8 + i) for i in range(4)], 1e8, nic_efficiency=1.0)
    assert four == pytest.approx(4 * one)
