"""The closed form, the event model and the packet model time a lone message alike."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.network import (
    EventQueue,
    MessageCosts,
    Pair,
    links_between,
    lone_message_s,
    open_links,
)
from jaxpipe.topo import Cluster
from jaxpipe.topo.emulate.network_spec import network_spec
from jaxpipe.topo.emulate.packet_model import network_of
from tests.simulate.uniform import cluster

CLUSTERS = ("two-region", "case1-datacenter", "case2-spot", "fluidstack-3region:hosts=2")
COSTS = st.builds(
    MessageCosts,
    overhead_s=st.floats(0, 1),
    flow_bytes_per_s=st.floats(0.1, 10),
    host_bytes_per_s=st.floats(0.1, 10),
    window=st.sampled_from([None, 1, 2]),
    num_buffers=st.sampled_from([None, 1]),
)


def arrival_s(
    on: Cluster, pair: Pair, num_bytes: float, costs: MessageCosts, *, nic_efficiency: float
) -> float:
    """Return when a lone message arrives by events; other links of the hosts are open but idle."""
    queue, pairs = EventQueue(), {(a, b) for a in range(len(on)) for b in range(len(on)) if a != b}
    links = open_links(queue, on, {costs: pairs}, nic_efficiency=nic_efficiency)
    arrivals: list[float] = []
    links[costs][pair].send(num_bytes, lambda: arrivals.append(queue.now_s))
    queue.run()
    return arrivals[0]


@given(
    costs=COSTS,
    num_bytes=st.floats(0, 100),
    pair=st.sampled_from([(0, 1), (0, 2), (3, 1)]),
    nic=st.floats(0.1, 10),
    nic_efficiency=st.floats(0.1, 1),
    burst=st.sampled_from([0.0, 0.5, 20.0]),
)
def test_the_closed_form_is_the_event_models_lone_message(
    costs: MessageCosts,
    num_bytes: float,
    pair: Pair,
    nic: float,
    nic_efficiency: float,
    burst: float,
):
    on = cluster(4, latency_s=0.5, devices_per_host=2, nic_bytes_per_s=nic)
    on = replace(on, hosts=tuple(replace(host, burst_bytes=burst) for host in on.hosts))
    events_s = arrival_s(on, pair, num_bytes, costs, nic_efficiency=nic_efficiency)
    closed_s = lone_message_s(
        on, pair, num_bytes=num_bytes, costs=costs, nic_efficiency=nic_efficiency
    )
    assert events_s == pytest.approx(closed_s, rel=1e-12)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("num_bytes", [0, 1, 8 * 2**20])
def test_alpha_beta_never_beats_the_event_model(name: str, num_bytes: int):
    on = topo.load(name)
    links, last = links_between(on, tuple(range(len(on)))), len(on) - 1
    is_shared = bool((on.bandwidth_bytes_per_s < on.alone_bytes_per_s).any())
    for pair in ((0, 1), (0, last), (last, 0)):
        table_s = links.message_s(*pair, num_bytes=num_bytes)
        lone_s = arrival_s(on, pair, num_bytes, MessageCosts(), nic_efficiency=1.0)
        assert table_s >= lone_s * (1 - 1e-12)
        if not is_shared:  # the table is the link's own bandwidth, nothing is kept for others
            assert table_s == pytest.approx(lone_s, rel=1e-12)


def test_a_link_has_the_part_of_one_device_of_a_trunk():
    on = topo.load("two-region")
    shared = replace(
        on, trunks=(topo.Trunk(source="ohio", destination="virginia", bytes_per_s=1e6),)
    )
    assert {on.devices[0].region, on.devices[2].region} == {"ohio", "virginia"}
    there = (0, 2) if on.devices[0].region == "ohio" else (2, 0)
    back = there[::-1]
    before, after = (links_between(each, tuple(range(len(on)))) for each in (on, shared))
    # Two devices in each region send at once; alone, a message has all of it.
    assert after.wire_s(*there, num_bytes=1e6) == pytest.approx(2.0)
    assert lone_message_s(shared, there, num_bytes=1e6) == pytest.approx(
        1.0 + float(on.latency_s[there])
    )
    assert after.wire_s(*back, num_bytes=1e6) == before.wire_s(*back, num_bytes=1e6)


@pytest.mark.parametrize("num_packets", [1, 7])
def test_packets_of_a_message_arrive_when_the_event_model_says(num_packets: int):
    on, pair, size = topo.load("two-region"), (0, 2), 1500
    packets = network_of(network_spec(on))
    arrivals = [packets.enter(pair, num_bytes=size, now_s=0.0) for _ in range(num_packets)]
    whole_s = lone_message_s(on, pair, num_bytes=num_packets * size)
    assert arrivals[-1] == pytest.approx(whole_s, rel=1e-12)
