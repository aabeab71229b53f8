"""Shared NICs and trunks, and what a wire makes of a link."""

from dataclasses import replace
from functools import partial
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.network import EventQueue, Pair, open_links
from jaxpipe.network.nic import SharedTransfer
from jaxpipe.simulate import MessageCosts
from jaxpipe.topo import Cluster, Trunk
from tests.simulate.uniform import cluster


def arrivals(
    on: Cluster,
    sends: list[tuple[float, Pair, float]],
    *,
    wire: MessageCosts | None = None,
    nic_efficiency: float = 1.0,
) -> list[float]:
    """Return when each message arrives, given when and where it is posted, and its bytes.

    A latency before, or sooner, it is certain when that will be.
    """
    queue, wire = EventQueue(), wire or MessageCosts()
    links = open_links(
        queue, on, {wire: {pair for _, pair, _ in sends}}, nic_efficiency=nic_efficiency
    )
    times = [0.0] * len(sends)
    foreseen: dict[int, float] = {}

    def foresee(index: int, leaves_s: float, arrives_s: float) -> None:
        _, (source, destination), _ = sends[index]
        latency_s = float(on.latency_s[source, destination])
        assert leaves_s + latency_s == arrives_s
        assert queue.now_s <= leaves_s
        foreseen[index] = arrives_s

    def note(index: int) -> None:
        times[index] = queue.now_s
        assert foreseen[index] == queue.now_s

    def post(index: int) -> None:
        _, pair, num_bytes = sends[index]
        links[wire][pair].send(num_bytes, lambda: note(index), on_timed=partial(foresee, index))

    for index, (time_s, _, _) in enumerate(sends):
        queue.at(time_s, post, index)
    queue.run()
    return times


@settings(deadline=None)
@given(st.integers(1, 6), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_transfers_that_leave_a_host_together_share_its_nic(n: int, size: float, nic: float):
    on = cluster(2 * n, devices_per_host=n, nic_bytes_per_s=nic)
    times = arrivals(on, [(0.0, (i, n + i), size) for i in range(n)])
    assert times == pytest.approx([size / min(1.0, nic / n)] * n)


def test_whoever_stays_gets_the_share_of_whoever_has_gone():
    on = cluster(4, devices_per_host=2, nic_bytes_per_s=1.0)
    # Half a byte a second each; from 2 on, the second has the NIC for itself.
    assert arrivals(on, [(0.0, (0, 2), 1.0), (0.0, (1, 3), 3.0)]) == pytest.approx([2.0, 4.0])
    # The first has moved one byte when the second comes.
    assert arrivals(on, [(0.0, (0, 2), 2.0), (1.0, (1, 3), 1.0)]) == pytest.approx([3.0, 3.0])


def test_messages_that_follow_each_other_leave_the_rates_of_others_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    # Four messages one after the other on each of three links of a NIC: as many transfers at any
    # time, but at the end.
    settled: list[SharedTransfer] = []
    settle = SharedTransfer.settle

    def counted(transfer: SharedTransfer, now_s: float) -> None:
        settled.append(transfer)
        settle(transfer, now_s)

    monkeypatch.setattr(SharedTransfer, "settle", counted)
    on = cluster(6, devices_per_host=3, nic_bytes_per_s=1.5)
    times = arrivals(on, [(0.0, (i, 3 + i), 1.0) for _ in range(4) for i in range(3)])
    assert times == pytest.approx([2.0] * 3 + [4.0] * 3 + [6.0] * 3 + [8.0] * 3)
    assert len(settled) == 4 * 3


def test_two_hosts_that_send_to_one_share_its_nic():
    on = cluster(3, nic_bytes_per_s=1.0)
    assert arrivals(on, [(0.0, (0, 2), 1.0), (0.0, (1, 2), 1.0)]) == pytest.approx([2.0, 2.0])


def test_directions_of_a_nic_do_not_disturb_each_other():
    on = cluster(3, nic_bytes_per_s=1.0)
    assert arrivals(on, [(0.0, (0, 1), 1.0), (0.0, (1, 2), 1.0)]) == pytest.approx([1.0, 1.0])


def test_inside_a_host_nothing_is_shared():
    on = cluster(4, devices_per_host=4, nic_bytes_per_s=0.1)
    wire = MessageCosts(overhead_s=5.0, flow_bytes_per_s=0.1, host_bytes_per_s=0.1, window=1)
    sends = [(0.0, (0, 1), 2.0), (0.0, (2, 3), 2.0)]
    assert arrivals(on, sends, wire=wire) == [2.0, 2.0]


def two_regions(num_hosts: int, *, trunk: float, nic: float = float("inf")) -> Cluster:
    """Return as many hosts of one device in each of two regions, and a trunk there alone."""
    on = cluster(2 * num_hosts, nic_bytes_per_s=nic)
    named = ["near"] * num_hosts + ["far"] * num_hosts
    return replace(
        on,
        devices=tuple(replace(d, region=r) for d, r in zip(on.devices, named, strict=True)),
        hosts=tuple(replace(h, region=r) for h, r in zip(on.hosts, named, strict=True)),
        trunks=(Trunk(source="near", destination="far", bytes_per_s=trunk),),
    )


@settings(deadline=None)
@given(st.integers(1, 6), st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(0.1, 2.0))
def test_transfers_between_two_regions_share_the_trunk(
    n: int, size: float, trunk: float, nic: float
):
    on = two_regions(n, trunk=trunk, nic=nic)
    there = [(0.0, (i, n + i), size) for i in range(n)]
    assert arrivals(on, there) == pytest.approx([size / min(1.0, nic, trunk / n)] * n)
    # The way back has no trunk, and the way there does not slow it down.
    both = arrivals(on, [*there, *((0.0, (n + i, i), size) for i in range(n))])
    assert both[n:] == pytest.approx([size / min(1.0, nic)] * n)


def test_inside_a_region_the_trunk_is_not_used():
    on = two_regions(2, trunk=0.1)
    assert arrivals(on, [(0.0, (0, 1), 2.0), (0.0, (2, 3), 2.0)]) == [2.0, 2.0]


def test_a_part_of_a_nic_is_usable_where_it_is_shared():
    on = cluster(4, devices_per_host=2, nic_bytes_per_s=1.0)
    sends = [(0.0, (0, 2), 1.0), (0.0, (1, 3), 1.0)]
    assert arrivals(on, sends, nic_efficiency=0.5) == pytest.approx([4.0, 4.0])


LINK: Pair = (0, 1)
WIRES = {
    "back to back": (MessageCosts(), [3.0, 4.0, 5.0]),
    "one at a time": (MessageCosts(window=1), [3.0, 6.0, 9.0]),
    "two on their way": (MessageCosts(window=2), [3.0, 4.0, 6.0]),
    "with an overhead": (MessageCosts(overhead_s=0.5), [3.5, 5.0, 6.5]),
    "with a slow flow": (MessageCosts(flow_bytes_per_s=0.5), [4.0, 6.0, 8.0]),
    "with a slow host": (MessageCosts(host_bytes_per_s=0.5), [4.0, 6.0, 8.0]),
    # Half a byte, and after a round trip of 4 s the rest; then the window is 1, later 2.
    "after an idle time": (MessageCosts(restart_bytes=0.5), [6.5, 10.5, 11.5]),
}


@pytest.mark.parametrize("name", WIRES)
def test_a_wire_says_how_messages_follow_each_other(name: str):
    wire, expected = WIRES[name]
    on = cluster(2, latency_s=2.0)
    assert arrivals(on, [(0.0, LINK, 1.0)] * 3, wire=wire) == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from([(0, 2), (1, 2), (1, 3)]))))
def test_sharing_keeps_order_and_never_beats_an_idle_network(sends: list[tuple[float, Pair]]):
    on = cluster(4, devices_per_host=2, nic_bytes_per_s=1.2)
    posted = sorted((time_s, pair, 1.0) for time_s, pair in sends)
    times = arrivals(on, posted)
    assert all(
        end_s >= start_s + 1.0 - 1e-9 for end_s, (start_s, _, _) in zip(times, posted, strict=True)
    )
    for pair in {pair for _, pair, _ in posted}:
        of_pair = [end_s for end_s, (_, used, _) in zip(times, posted, strict=True) if used == pair]
        assert of_pair == sorted(of_pair)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("overhead_s", -1.0, r"`overhead_s` must be 0 or more, not -1.0"),
        ("flow_bytes_per_s", 0.0, r"`flow_bytes_per_s` must be above 0, not 0.0"),
        ("host_bytes_per_s", -2.0, r"`host_bytes_per_s` must be above 0, not -2.0"),
        ("restart_bytes", 0.0, r"`restart_bytes` must be above 0, or None, not 0.0"),
        ("window", 0, r"`window` must be at least 1, or None for no limit, not 0"),
        ("num_buffers", 0, r"`num_buffers` must be at least 1, or None for no limit, not 0"),
    ],
)
def test_a_wire_that_moves_nothing_is_refused(field: str, value: float, words: str):
    with pytest.raises(PlanError, match=words):
        MessageCosts(**{field: value})  # pyright: ignore[reportArgumentType]


def bucket(burst: float, *, nic: float = 1.0) -> Cluster:
    """Return two hosts of two devices: links of 4 bytes/s, buckets of `burst` before NICs."""
    on = cluster(4, devices_per_host=2, nic_bytes_per_s=nic, bytes_per_s=4.0)
    limits = {"burst_bytes": burst, "ingress_bytes_per_s": inf}
    return replace(on, hosts=tuple(replace(host, **limits) for host in on.hosts))


def test_a_bucket_lets_a_burst_through_as_fast_as_its_links():
    on = bucket(6.0)
    # 6 bytes of tokens, and 1 more a second: empty after 2 s, when 8 bytes have left.
    assert arrivals(on, [(0.0, (0, 2), 8.0)]) == pytest.approx([2.0])
    assert arrivals(on, [(0.0, (0, 2), 10.0)]) == pytest.approx([4.0])
    # Two links empty it in 6 / 7 s, with 24 / 7 bytes each; the rest at half of the rate.
    rest_s = (8 - 24 / 7) / 0.5
    both = [(0.0, (0, 2), 8.0), (0.0, (1, 3), 8.0)]
    assert arrivals(on, both) == pytest.approx([6 / 7 + rest_s] * 2)


def test_a_silence_fills_the_bucket():
    on = bucket(6.0)
    # Empty at 2 s; 3 s later it has 3 tokens, which last for 1 s and 4 bytes.
    sends = [(0.0, (0, 2), 8.0), (5.0, (0, 2), 5.0)]
    assert arrivals(on, sends) == pytest.approx([2.0, 7.0])
    # Never more than it holds, however long the silence.
    sends = [(0.0, (0, 2), 8.0), (100.0, (0, 2), 10.0)]
    assert arrivals(on, sends) == pytest.approx([2.0, 104.0])


@settings(deadline=None)
@given(
    st.floats(0.5, 20.0),
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 1), st.floats(0.1, 20)), min_size=1, max_size=8
    ),
)
def test_in_any_time_no_more_than_the_rate_and_a_burst_leaves(
    burst: float, sends: list[tuple[float, int, float]]
):
    on = bucket(burst)
    times = arrivals(on, [(at_s, (a, 2 + a), num_bytes) for at_s, a, num_bytes in sends])
    first_s = min(at_s for at_s, _, _ in sends)
    total = sum(num_bytes for _, _, num_bytes in sends)
    assert total <= (max(times) - first_s + 1e-6) * 1.0 + burst + 1e-6
    assert all(
        time_s >= at_s + size / 4.0 - 1e-9
        for time_s, (at_s, _, size) in zip(times, sends, strict=True)
    )
