"""Emulated links follow alpha-beta, carry one message at a time, and share a host's NIC evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import topo
from jaxpipe.comm.shaped import EmulatedLinks
from jaxpipe.plan.cost import links_between
from topo import Cluster, Device, Host

POSTED = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 10**9), st.floats(0, 10)), min_size=1, max_size=12
)


def two_hosts(*, egress: float = np.inf, ingress: float = np.inf) -> Cluster:
    """Return two devices on each of two hosts, and links of 1000 bytes/s and 0.5 s."""
    apart = 1.0 - np.eye(4)
    return Cluster(
        name="two-hosts",
        devices=tuple(Device(name=f"{i}", host="ab"[i // 2], region="here") for i in range(4)),
        latency_s=0.5 * apart,
        bandwidth_bytes_per_s=np.where(apart > 0, 1e3, np.inf),
        hosts=tuple(
            Host(name=name, region="here", egress_bytes_per_s=egress, ingress_bytes_per_s=ingress)
            for name in "ab"
        ),
    )


@given(posted=POSTED, scale=st.floats(0.1, 10), rank=st.integers(0, 3))
def test_each_link_carries_one_message_at_a_time(
    posted: list[tuple[int, int, float]], scale: float, rank: int
) -> None:
    cluster, devices = topo.load("two-region"), (3, 0, 2, 1)
    emulated = EmulatedLinks(cluster, devices, rank=rank, scale=scale)
    links, free_s = links_between(cluster, devices), dict.fromkeys(range(4), 0.0)
    now_s = 0.0
    for to, num_bytes, later_s in posted:
        now_s += later_s
        passage = emulated.carry(to=to, num_bytes=num_bytes, now_s=now_s)
        wire_s = scale * links.wire_s(rank, to, num_bytes=num_bytes)
        free_s[to] = max(now_s, free_s[to]) + wire_s
        assert passage.leaves_s == pytest.approx(free_s[to])
        latency_s = scale * links.latency_s[rank, to]
        assert passage.arrives_s - passage.leaves_s == pytest.approx(latency_s, abs=1e-9)


def test_a_rank_sends_to_itself_at_once() -> None:
    links = EmulatedLinks(two_hosts(egress=1.0), (0, 1, 2, 3), rank=1)
    assert links.carry(to=1, num_bytes=10**9, now_s=7.0).arrives_s == 7.0


def test_the_ranks_of_a_host_share_its_nic_evenly() -> None:
    links = EmulatedLinks(two_hosts(egress=1e3), (0, 1, 2, 3), rank=0)
    leave_s = [links.carry(to=to, num_bytes=1_000, now_s=0.0).leaves_s for to in (2, 3, 2, 1)]
    assert leave_s == [2.0, 4.0, 6.0, 1.0]  # 500 bytes/s to the other host, 1000 within
    alone = EmulatedLinks(two_hosts(egress=1e3), (0, 2, 3), rank=0)
    assert alone.carry(to=1, num_bytes=1_000, now_s=0.0).leaves_s == 1.0


def test_no_link_is_faster_than_the_receivers_share_of_the_ingress() -> None:
    links = EmulatedLinks(two_hosts(ingress=500.0), (0, 1, 2, 3), rank=0)
    leave_s = [links.carry(to=to, num_bytes=1_000, now_s=0.0).leaves_s for to in (2, 3, 1)]
    assert leave_s == [4.0, 4.0, 1.0]  # 250 bytes/s to each, beside each other; 1000 within
