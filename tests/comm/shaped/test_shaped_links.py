"""Emulated links are the simulator's, as far as one rank can know them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.comm.shaped import links_of_rank
from jaxpipe.network import EventQueue, MessageCosts, links_between, open_links
from jaxpipe.topo import Cluster, Device, Host, Trunk

Posted = list[tuple[int, int, float]]
"""Messages: the rank that receives one, its bytes, and how long after the one before it is sent."""

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


def timed(
    cluster: Cluster, devices: tuple[int, ...], posted: Posted, *, rank: int, scale: float = 1.0
) -> list[tuple[float, float]]:
    """Return when each message leaves its link and when it arrives."""
    queue = EventQueue()
    links = links_of_rank(queue, cluster, devices, rank=rank, scale=scale)
    times = [(0.0, 0.0)] * len(posted)
    now_s = 0.0
    for number, (to, num_bytes, later_s) in enumerate(posted):
        now_s += later_s

        def send(to: int = to, num_bytes: int = num_bytes, number: int = number) -> None:
            def on_timed(leaves_s: float, arrives_s: float) -> None:
                times[number] = (leaves_s, arrives_s)

            links[to].send(num_bytes, lambda: None, on_timed=on_timed)

        queue.at(now_s, send)
    queue.run()
    return times


@given(posted=POSTED, scale=st.floats(0.1, 10), rank=st.integers(0, 3))
def test_each_link_carries_one_message_at_a_time(posted: Posted, scale: float, rank: int) -> None:
    cluster, devices = topo.load("two-region"), (3, 0, 2, 1)
    links, free_s = links_between(cluster, devices), dict.fromkeys(range(4), 0.0)
    times, now_s = timed(cluster, devices, posted, rank=rank, scale=scale), 0.0
    for (to, num_bytes, later_s), (leaves_s, arrives_s) in zip(posted, times, strict=True):
        now_s += later_s
        wire_s = scale * links.wire_s(rank, to, num_bytes=num_bytes)
        free_s[to] = max(now_s, free_s[to]) + wire_s
        assert leaves_s == pytest.approx(free_s[to])
        latency_s = scale * links.latency_s[rank, to]
        assert arrives_s - leaves_s == pytest.approx(latency_s, abs=1e-9)


@given(posted=POSTED, rank=st.integers(0, 3))
@pytest.mark.parametrize("egress", [np.inf, 300.0, 1500.0])
def test_a_rank_alone_on_each_host_sees_what_the_simulator_sees(
    posted: Posted, rank: int, egress: float
) -> None:
    devices, hosts = tuple(range(4)), two_hosts(egress=egress)
    apart = Cluster(
        name="apart",
        devices=tuple(Device(name=f"{i}", host=f"host-{i}", region="here") for i in devices),
        latency_s=hosts.latency_s,
        bandwidth_bytes_per_s=hosts.bandwidth_bytes_per_s,
        hosts=tuple(
            Host(
                name=f"host-{i}",
                region="here",
                egress_bytes_per_s=egress,
                ingress_bytes_per_s=900.0,
            )
            for i in devices
        ),
    )
    queue, costs, simulated = EventQueue(), MessageCosts(), [0.0] * len(posted)
    pairs = {costs: {(rank, to) for to in devices}}
    links = open_links(queue, apart, pairs, nic_efficiency=1.0)[costs]
    now_s = 0.0
    for number, (to, num_bytes, later_s) in enumerate(posted):
        now_s += later_s

        def send(to: int = to, num_bytes: int = num_bytes, number: int = number) -> None:
            def arrive() -> None:
                simulated[number] = queue.now_s

            links[rank, to].send(num_bytes, arrive)

        queue.at(now_s, send)
    queue.run()
    emulated = [arrives_s for _, arrives_s in timed(apart, devices, posted, rank=rank)]
    assert emulated == pytest.approx(simulated, rel=1e-12)


def test_a_rank_sends_to_itself_at_once() -> None:
    devices = (0, 1, 2, 3)
    times = timed(two_hosts(egress=1.0), devices, [(1, 10**9, 7.0)], rank=1)
    assert times == [(7.0, 7.0)]


def test_the_ranks_of_a_host_share_its_nic_evenly() -> None:
    at_once = [(to, 1_000, 0.0) for to in (2, 3, 2, 1)]
    times = timed(two_hosts(egress=1e3), (0, 1, 2, 3), at_once, rank=0)
    # 500 bytes/s to the other host, for two links at first and then for one; 1000 within.
    assert [leaves_s for leaves_s, _ in times] == pytest.approx([4.0, 4.0, 6.0, 1.0])
    alone = timed(two_hosts(egress=1e3), (0, 2, 3), [(1, 1_000, 0.0)], rank=0)
    assert alone[0][0] == 1.0


def test_the_ranks_of_a_host_share_its_token_bucket_evenly() -> None:
    on = two_hosts(egress=250.0)
    on = replace(on, hosts=tuple(replace(host, burst_bytes=1_000.0) for host in on.hosts))
    # 500 bytes of tokens and 125 more a second for each of two ranks, over a link of 1000 bytes/s.
    times = timed(on, (0, 1, 2, 3), [(2, 1_000, 0.0)], rank=0)
    assert times[0][0] == pytest.approx((1_000 - 500) / 125)


def test_no_link_is_faster_than_the_receivers_share_of_the_ingress() -> None:
    at_once = [(to, 1_000, 0.0) for to in (2, 3, 1)]
    times = timed(two_hosts(ingress=500.0), (0, 1, 2, 3), at_once, rank=0)
    # 250 bytes/s to each, in parallel; 1000 within.
    assert [leaves_s for leaves_s, _ in times] == pytest.approx([4.0, 4.0, 1.0])


def test_the_ranks_of_a_region_share_its_trunk_evenly() -> None:
    hosts = two_hosts()
    regions = {"a": "near", "b": "far"}
    names = dict(zip((host.name for host in hosts.hosts), regions.values(), strict=True))
    apart = replace(
        hosts,
        devices=tuple(replace(each, region=names[each.host]) for each in hosts.devices),
        hosts=tuple(replace(each, region=names[each.name]) for each in hosts.hosts),
        trunks=(Trunk(source="near", destination="far", bytes_per_s=500.0),),
    )
    times = timed(apart, (0, 1, 2, 3), [(to, 1_000, 0.0) for to in (2, 3, 1)], rank=0)
    # 250 bytes/s for this rank, over two links; 1000 within.
    assert [leaves_s for leaves_s, _ in times] == pytest.approx([8.0, 8.0, 1.0])


def test_links_cannot_be_sped_up_to_nothing() -> None:
    with pytest.raises(ValueError, match="`scale` must be above 0, is 0"):
        timed(two_hosts(), (0, 1), [(1, 1, 0.0)], rank=0, scale=0.0)
