"""Which all-reduce is picked: the least of those simulated, and what everybody would pick."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import Plan, default_plan
from jaxpipe.plan.cost import links_between, ring_s, uniform_links
from jaxpipe.plan.cost.collective_cost import all_reduce_s
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate import fastest_all_reduce, gradient_sync_s
from jaxpipe.topo import Cluster
from tests.plan_section import decided
from tests.simulate.uniform import cluster


def plan_on(where: Cluster, *, stages: int, replicas: int, chunks: int = 1) -> Plan:
    config = decided(
        stages=stages * chunks,
        replicas=replicas,
        chunks=chunks,
        schedule=ScheduleKind.ONE_F_ONE_B if chunks == 1 else ScheduleKind.INTERLEAVED,
    )
    batch = replicas * stages
    return default_plan(config, where, num_layers=stages * chunks, batch=batch, tied=False)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2), st.sampled_from([0.0, 1.0, 1e6]))
def test_none_is_faster(stages: int, replicas: int, chunks: int, num_bytes: float):
    where = cluster(stages * replicas, latency_s=0.01, bytes_per_s=1e6, devices_per_host=2)
    plan = plan_on(where, stages=stages, replicas=replicas, chunks=chunks)
    each = {"segment_bytes": (num_bytes,) * plan.num_stages, "embed_bytes": 0.0}
    kind, seconds = fastest_all_reduce(plan, where, **each)
    for other in set(AllReduceKind) - {AllReduceKind.LIBRARY}:
        if other not in (AllReduceKind.CHAIN, AllReduceKind.CENTRAL):
            assert seconds <= gradient_sync_s(replace(plan, all_reduce=other), where, **each)
    assert seconds == gradient_sync_s(replace(plan, all_reduce=kind), where, **each)


@pytest.mark.parametrize("replicas", [2, 5])
def test_a_ring_takes_its_closed_form(replicas: int):
    where = cluster(replicas, latency_s=0.5, bytes_per_s=4.0)
    plan = replace(plan_on(where, stages=1, replicas=replicas), all_reduce=AllReduceKind.RING)
    links = uniform_links(replicas, latency_s=0.5, bandwidth_bytes_per_s=4.0)
    # Large enough to hide the scalars of all ranks but the first.
    one_s = gradient_sync_s(plan, where, segment_bytes=(800.0,), embed_bytes=0.0)
    two_s = gradient_sync_s(plan, where, segment_bytes=(1600.0,), embed_bytes=0.0)
    wires_s = ring_s(links, num_bytes=1600.0) - ring_s(links, num_bytes=800.0)
    assert two_s - one_s == pytest.approx(wires_s)


@pytest.mark.parametrize("kind", sorted(set(AllReduceKind) - {AllReduceKind.LIBRARY}))
def test_an_empty_all_reduce_takes_the_latency_of_its_messages(kind: AllReduceKind):
    # A frozen tied embedding. The last stage joins before the first, and its messages are there.
    where = cluster(4, latency_s=0.5, bytes_per_s=4.0)
    config = decided(stages=4, replicas=1, schedule=ScheduleKind.ONE_F_ONE_B)
    plan = default_plan(config, where, num_layers=4, batch=4, tied=True)
    plan = replace(plan, all_reduce=kind)
    seconds = [
        gradient_sync_s(plan, where, segment_bytes=(80.0,) * 4, embed_bytes=num_bytes)
        for num_bytes in (0.0, 1e-9)
    ]
    # Empty messages wait for no posted receive, so they may arrive one latency earlier.
    assert seconds[1] - 0.5 - 1e-6 <= seconds[0] <= seconds[1]


def test_far_islands_share_their_sums_out():
    where = topo.load("two-region")
    plan = plan_on(where, stages=1, replicas=4)
    kind, _ = fastest_all_reduce(plan, where, segment_bytes=(64e6,), embed_bytes=0.0)
    assert kind in (AllReduceKind.HIERARCHICAL, AllReduceKind.SHARDED)


@pytest.mark.parametrize("kind", [AllReduceKind.HIERARCHICAL, AllReduceKind.SHARDED])
@pytest.mark.parametrize(
    "name", ["two-region", "aws", "case1-datacenter:hosts=2", "gcp-two-zones:hosts=1"]
)
def test_the_closed_form_of_shares_follows_the_simulation(name: str, kind: AllReduceKind):
    # Slow links between fast ports, where one message after the other would take many times as
    # long, and hosts whose devices share a NIC.
    where = topo.load(name)
    plan = replace(plan_on(where, stages=1, replicas=len(where)), all_reduce=kind)
    links = links_between(where, tuple(range(len(where))))
    simulated_s = gradient_sync_s(plan, where, segment_bytes=(256e6,), embed_bytes=0.0)
    in_closed_form_s = all_reduce_s(kind, links, plan.sync[0], num_bytes=256e6, chunk_bytes=8e6)
    assert in_closed_form_s == pytest.approx(simulated_s, rel=0.2)


def test_few_bytes_take_few_rounds():
    where = cluster(8, latency_s=1.0, bytes_per_s=1e12)
    plan = plan_on(where, stages=1, replicas=8)
    _, seconds = fastest_all_reduce(plan, where, segment_bytes=(8.0,), embed_bytes=0.0)
    slow = replace(plan, all_reduce=AllReduceKind.RING)
    assert seconds < gradient_sync_s(slow, where, segment_bytes=(8.0,), embed_bytes=0.0) / 3
    assert np.isfinite(seconds)
