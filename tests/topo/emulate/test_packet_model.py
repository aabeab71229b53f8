"""The model of the relay: what it promises of rates, latencies, order, NICs and queues."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.topo.emulate.network_spec import (
    HostSpec,
    LinkSpec,
    NetworkSpec,
    from_json,
    network_spec,
    to_json,
)
from jaxpipe.topo.emulate.packet_model import PacketNetwork, network_of

RATE, LATENCY_S = 1e6, 0.02
sizes = st.lists(st.integers(1, 60000), min_size=1, max_size=40)


def network(
    *,
    egress: float = inf,
    ingress: float = inf,
    trunk: float | None = None,
    jitter_s: float = 0.0,
    loss: float = 0.0,
    burst: float = 0.0,
) -> PacketNetwork:
    """Return three hosts; the NICs of host 0 (out) and of host 2 (in) have a limit.

    What goes to host 2 shares the trunk.
    """
    hosts = (
        HostSpec(name="a", egress_bytes_per_s=egress, burst_bytes=burst),
        HostSpec(name="b"),
        HostSpec(name="c", ingress_bytes_per_s=ingress),
    )
    links = tuple(
        LinkSpec(
            source=a,
            destination=b,
            latency_s=LATENCY_S,
            bytes_per_s=RATE * (1 + a),
            trunk=0 if trunk is not None and b == 2 else None,
        )
        for a in range(3)
        for b in range(3)
        if a != b
    )
    trunks = () if trunk is None else (trunk,)
    return network_of(
        NetworkSpec(hosts=hosts, links=links, trunks=trunks, jitter_s=jitter_s, loss=loss)
    )


def through(net: PacketNetwork, pair: tuple[int, int], num_bytes: int, *, now_s: float) -> float:
    """Return when a packet is in."""
    at_nic_s = net.enter(pair, num_bytes=num_bytes, now_s=now_s)
    assert at_nic_s is not None
    in_s = net.arrive(pair, num_bytes=num_bytes, now_s=at_nic_s)
    assert in_s is not None
    return in_s


@given(num_bytes=st.integers(1, 60000), egress=st.sampled_from([inf, 5e5, 5e6]))
@pytest.mark.parametrize("ingress", [inf, 2e5, 5e6])
def test_a_packet_alone_takes_the_slowest_rate_and_the_latency(
    num_bytes: int, egress: float, ingress: float
):
    net = network(egress=egress, ingress=ingress)
    slowest = min(RATE, egress)
    expected_s = 7.0 + num_bytes / slowest + LATENCY_S
    if ingress < slowest:  # it began to come in when the link began to send it
        expected_s += num_bytes / ingress - num_bytes / min(RATE, inf)
    assert through(net, (0, 2), num_bytes, now_s=7.0) == pytest.approx(expected_s)


@given(sizes=sizes)
def test_packets_one_after_the_other_take_the_sum_of_their_bytes(sizes: list[int]):
    net = network()
    last_s = [through(net, (0, 1), size, now_s=0.0) for size in sizes][-1]
    assert last_s == pytest.approx(sum(sizes) / RATE + LATENCY_S)


@given(sizes=sizes)
def test_directions_do_not_disturb_each_other(sizes: list[int]):
    net = network()
    times = [
        (through(net, (0, 1), size, now_s=0.0), through(net, (1, 0), size, now_s=0.0))
        for size in sizes
    ]
    there_s, back_s = times[-1]
    assert there_s - LATENCY_S == pytest.approx(2 * (back_s - LATENCY_S))


@given(sizes=sizes)
def test_links_share_the_nic_of_their_host(sizes: list[int]):
    net = network(egress=RATE / 2)
    last_s = max(through(net, (0, 1 + i % 2), size, now_s=0.0) for i, size in enumerate(sizes))
    assert last_s == pytest.approx(sum(sizes) / (RATE / 2) + LATENCY_S)


@given(sizes=sizes)
def test_links_of_several_hosts_share_a_trunk(sizes: list[int]):
    net = network(trunk=RATE / 3)
    last_s = max(through(net, (i % 2, 2), size, now_s=0.0) for i, size in enumerate(sizes))
    assert last_s == pytest.approx(sum(sizes) / (RATE / 3) + LATENCY_S)
    assert through(net, (2, 0), 300, now_s=0.0) == pytest.approx(300 / (3 * RATE) + LATENCY_S)


@given(sizes=sizes)
def test_links_share_the_nic_they_enter(sizes: list[int]):
    net = network(ingress=RATE / 4)
    arrivals = sorted(
        (net.enter((i % 2, 2), num_bytes=size, now_s=0.0) or 0.0, i % 2, size)
        for i, size in enumerate(sizes)
    )
    last_s = 0.0
    for at_s, source, size in arrivals:
        last_s = net.arrive((source, 2), num_bytes=size, now_s=at_s) or 0.0
    assert last_s >= sum(sizes) / (RATE / 4) + LATENCY_S - 1e-9


@given(sizes=sizes, jitter_s=st.floats(0, 2 * LATENCY_S))
def test_jitter_keeps_the_order_and_its_bounds(sizes: list[int], jitter_s: float):
    net = network(jitter_s=jitter_s)
    times = [through(net, (0, 1), size, now_s=i * 0.1) for i, size in enumerate(sizes)]
    assert times == sorted(times)
    for i, (size, time_s) in enumerate(zip(sizes, times, strict=True)):
        late_s = time_s - (i * 0.1 + size / RATE + LATENCY_S)
        assert -jitter_s - 1e-9 <= late_s <= jitter_s + 1e-9


def test_what_waits_is_bounded_and_the_rest_is_dropped():
    net = network()
    wire = net.wires[0, 1]
    for _ in range(2000):
        net.enter((0, 1), num_bytes=60000, now_s=0.0)
    assert wire.dropped_packets > 0
    assert wire.sent_bytes <= wire.server.limit_bytes + 2 * 60000
    assert wire.sent_bytes + 60000 * wire.dropped_packets == 2000 * 60000
    assert net.enter((0, 1), num_bytes=1, now_s=1e3) is not None  # the queue has gone by then


@pytest.mark.parametrize("loss", [0.0, 0.25])
def test_a_part_of_the_packets_is_lost(loss: float):
    net = network(loss=loss)
    lost = sum(net.enter((0, 1), num_bytes=100, now_s=float(i)) is None for i in range(4000))
    assert lost == pytest.approx(4000 * loss, abs=200)
    assert net.wires[0, 1].dropped_packets == lost


@pytest.mark.parametrize("name", ["laptop", "two-region", "fluidstack-3region:hosts=2"])
def test_a_cluster_becomes_a_network_and_back_from_json(name: str):
    cluster = topo.load(name)
    spec = network_spec(cluster, jitter_s=1e-3, loss=0.01)
    assert from_json(to_json(spec)) == spec
    assert [host.name for host in spec.hosts] == [host.name for host in cluster.hosts]
    assert len(spec.links) == len(spec.hosts) * (len(spec.hosts) - 1)
    for link in spec.links:
        device = cluster.host_of.index(link.source), cluster.host_of.index(link.destination)
        assert link.latency_s == cluster.latency_s[device]
        assert link.bytes_per_s == cluster.alone_bytes_per_s[device]


@pytest.mark.parametrize(
    ("jitter_s", "loss", "words"),
    [(-1.0, 0.0, "`jitter` must be at least 0 ms, is -1000"), (0.0, 1.0, "`loss` must be a part")],
)
def test_no_such_jitter_or_loss(jitter_s: float, loss: float, words: str):
    with pytest.raises(ValueError, match=words):
        network_spec(topo.load("laptop"), jitter_s=jitter_s, loss=loss)


def test_a_token_bucket_lets_a_burst_pass_as_fast_as_its_link():
    net = network(egress=RATE / 4, burst=6e5)
    arrivals = [net.enter((0, 1), num_bytes=50_000, now_s=5.0) for _ in range(20)]
    # Tokens for 6e5 bytes, and a quarter of the link's rate more: they last for 8e5 bytes.
    assert arrivals[15] == pytest.approx(5.0 + 0.8 + LATENCY_S)
    assert arrivals[19] == pytest.approx(5.0 + 0.8 + 4 * 0.2 + LATENCY_S)
