"""Collectives on uniform links against their closed forms, and against what they have to do."""

import math
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind, SyncTree, ranks
from jaxpipe.errors import PlanError
from jaxpipe.plan.cost import hierarchical_s, shares_s, uniform_links
from jaxpipe.schedule import Bucket, forward, interleaved, lower, reduce
from jaxpipe.simulate import (
    Collective,
    Phase,
    StepModel,
    all_reduce_messages,
    barrier,
    binary_tree,
    central_server,
    chain,
    ring,
    sharded_server,
    share_sum,
    simulate,
    tree_sum,
)
from jaxpipe.trace import Lane
from tests.simulate.uniform import cluster, collective_job

NUM_RANKS = st.integers(2, 9)
CHUNKS = st.integers(1, 8)
BYTES = st.floats(0.1, 50.0)
LATENCY = st.floats(0.0, 5.0)

_ALONE = lower(((forward(0, 0),),), tied=False, num_replicas=1)
_JOIN = ((forward(0, 0), reduce(0, Bucket.STAGE)),)


def duration(num_ranks: int, collective: Collective, *, latency_s: float) -> float:
    """Return how long the collective takes on links of one byte a second."""
    job = collective_job(cluster(num_ranks, latency_s=latency_s), collective, schedule=_JOIN)
    return max(s.end_s for s in simulate(job).spans if s.lane is Lane.REDUCE) - 1.0


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY, CHUNKS)
def test_a_chain_reduces_and_broadcasts_in_chunks(n: int, b: float, a: float, c: int):
    transfers = chain(tuple(range(n)), b, num_chunks=c, is_duplex=False)
    closed = 2 * ((1 + (n - 2) / c) * b + (n - 1) * a)
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY, CHUNKS)
def test_a_duplex_chain_passes_once(n: int, b: float, a: float, c: int):
    transfers = chain(tuple(range(n)), b, num_chunks=c, is_duplex=True)
    closed = (1 + (2 * n - 3) / c) * b + 2 * (n - 1) * a
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY, CHUNKS)
def test_a_chain_of_islands_takes_what_the_planner_thinks(n: int, b: float, a: float, c: int):
    tree: SyncTree = n - 1
    for rank in range(n - 2, -1, -1):
        tree = (rank, tree)
    links = uniform_links(n, latency_s=a, bandwidth_bytes_per_s=1.0)
    closed = hierarchical_s(links, tree, num_bytes=b, chunk_bytes=b / c * (1 + 1e-12))
    transfers = tree_sum(tree, b, num_chunks=c)
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY)
def test_a_ring_takes_two_rounds_of_parts(n: int, b: float, a: float):
    closed = 2 * (n - 1) * (b / n + a)
    assert duration(n, ring(range(n), b), latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY)
def test_parameter_servers_take_two_messages_where_pairs_limit(n: int, b: float, a: float):
    central = duration(n, central_server(range(n), b), latency_s=a)
    sharded = duration(n, sharded_server(range(n), b), latency_s=a)
    assert central == pytest.approx(2 * (b + a))
    assert sharded == pytest.approx(2 * (b / n + a))


@settings(deadline=None)
@given(st.integers(1, 4), BYTES, LATENCY)
def test_a_tree_takes_its_depth_twice(depth: int, b: float, a: float):
    n = 2**depth - 1 + (depth == 1)
    closed = 2 * (n.bit_length() - 1) * (b + a)
    transfers = binary_tree(range(n), num_bytes=b, num_chunks=1)
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(st.integers(2, 70), LATENCY)
def test_a_barrier_takes_a_latency_for_each_doubling(n: int, a: float):
    closed = math.ceil(math.log2(n)) * a
    assert duration(n, barrier(range(n)), latency_s=a) == pytest.approx(closed)


ALL_REDUCES: dict[str, Callable[[int], Collective]] = {
    "chain": lambda n: chain(tuple(range(n)), 1.0, num_chunks=3, is_duplex=False),
    "duplex chain": lambda n: chain(tuple(range(n)), 1.0, num_chunks=3, is_duplex=True),
    "ring": lambda n: ring(range(n), 1.0),
    "binary tree": lambda n: binary_tree(range(n), num_bytes=1.0, num_chunks=2),
    "central server": lambda n: central_server(range(n), 1.0),
    "sharded server": lambda n: sharded_server(range(n), 1.0),
    "barrier": lambda n: barrier(range(n)),
}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", ALL_REDUCES)
def test_everyone_hears_of_everyone(name: str, num_ranks: int):
    collective = ALL_REDUCES[name](num_ranks)
    # What the source of each transfer can know: itself, and what it waited for. Parts that travel
    # apart cover all ranks together.
    known: list[set[int]] = []
    heard: dict[int, set[int]] = {rank: {rank} for rank in range(num_ranks)}
    for transfer in collective:
        knows = {transfer.source}.union(*(known[need] for need in transfer.after))
        known.append(knows)
        heard[transfer.destination] |= knows
        assert all(collective[need].destination == transfer.source for need in transfer.after)
    assert all(each == set(range(num_ranks)) for each in heard.values())


@pytest.mark.parametrize("kind", [kind for kind in AllReduceKind if kind != "library"])
@pytest.mark.parametrize("tree", [3, (0, 1), (0, 2, 1), ((0, 1), 2), ((0, (1, 4)), (2, 3, 5))])
def test_everyone_hears_all_of_everyone_whatever_the_algorithm(kind: AllReduceKind, tree: SyncTree):
    collective = all_reduce_messages(kind, tree, num_bytes=12.0, chunk_bytes=5.0)
    members = ranks(tree)
    heard = {rank: {rank} for rank in members}
    known: list[set[int]] = []
    for transfer in collective:
        knows = {transfer.source}.union(*(known[need] for need in transfer.after))
        known.append(knows)
        heard[transfer.destination] |= knows
    assert all(each == set(members) for each in heard.values())
    told = {rank: sum(t.num_bytes for t in collective if t.destination == rank) for rank in members}
    assert all(told[rank] >= 12.0 - 1e-9 for rank in members if len(members) > 1)


@settings(deadline=None)
@given(st.integers(3, 7), BYTES, LATENCY)
def test_a_flat_share_takes_what_the_planner_thinks(n: int, b: float, a: float):
    tree = tuple(range(n))
    where = cluster(n, latency_s=a, nic_bytes_per_s=1.0)
    job = collective_job(where, share_sum(tree, b, num_chunks=1), schedule=_JOIN)
    took_s = max(s.end_s for s in simulate(job).spans if s.lane is Lane.REDUCE) - 1.0
    links = uniform_links(n, latency_s=a, bandwidth_bytes_per_s=1.0)
    assert took_s == pytest.approx(shares_s(links, tree, num_bytes=b))


@settings(deadline=None)
@given(st.integers(2, 4), BYTES, LATENCY)
def test_two_islands_that_share_take_what_the_planner_thinks(q: int, b: float, a: float):
    tree = (tuple(range(q)), tuple(range(q, 2 * q)))
    where = cluster(2 * q, latency_s=a, nic_bytes_per_s=1.0)
    job = collective_job(where, share_sum(tree, b, num_chunks=1), schedule=_JOIN)
    took_s = max(s.end_s for s in simulate(job).spans if s.lane is Lane.REDUCE) - 1.0
    closed_s = 2 * (a + b * (q - 1) / q) + a + b / q if q > 2 else 3 * a + 1.5 * b
    assert took_s == pytest.approx(closed_s)


def test_what_a_library_does_is_not_simulated():
    with pytest.raises(PlanError, match="`all_reduce` is library; take another one"):
        all_reduce_messages(AllReduceKind.LIBRARY, (0, 1), num_bytes=1.0, chunk_bytes=1.0)


def test_islands_sum_before_they_cross():
    tree = ((0, 1), (2, 3))
    crossing = [
        (t.source, t.destination)
        for t in chain(tree, 1.0, num_chunks=1, is_duplex=True)
        if (t.source < 2) != (t.destination < 2)
    ]
    assert ranks(tree) == (0, 1, 2, 3)
    assert crossing == [(2, 0), (0, 2)]


def test_an_all_reduce_waits_for_the_last_of_its_ranks():
    build = partial(chain, num_chunks=1, is_duplex=False)
    job = collective_job(cluster(2), build((0, 1), 4.0), schedule=_JOIN)
    late = type(job)(
        cluster=job.cluster,
        placement=job.placement,
        phases=job.phases,
        forward_s=(1.0, 3.0),
        backward_s=job.backward_s,
        collectives=job.collectives,
    )
    spans = {s.rank: s for s in simulate(late).spans if s.lane is Lane.REDUCE}
    assert (spans[0].start_s, spans[0].end_s) == (1.0, 11.0)
    assert (spans[1].start_s, spans[1].end_s) == (3.0, 11.0)


def test_a_reduction_without_a_collective_takes_no_time():
    job = collective_job(cluster(1), (), schedule=_ALONE)
    assert {span.lane for span in simulate(job).spans} == {Lane.COMPUTE}


def chunked_job(*num_bytes: float) -> StepModel:
    """Return two replicas of two ranks with two chunks each, and the sums of their four stages."""
    compute = interleaved(num_stages=4, num_microbatches=2, num_chunks=2)
    return StepModel(
        cluster=cluster(4),
        placement=((0, 1), (2, 3)),
        phases=(Phase(schedule=lower(compute, tied=False, num_replicas=2)),),
        forward_s=(1.0,) * 8,
        backward_s=(2.0,) * 8,
        update_s=(0.5,) * 8,
        num_chunks=2,
        collectives={
            Bucket.STAGE: tuple(
                chain((stage % 2, stage % 2 + 2), each, num_chunks=1, is_duplex=True)
                for stage, each in enumerate(num_bytes)
            )
        },
    )


def test_each_chunk_is_summed_over_its_own_replicas():
    num_bytes = (0.1, 0.2, 0.3, 0.4)
    spans = [s for s in simulate(chunked_job(*num_bytes)).spans if s.lane is Lane.REDUCE]
    lasted = {(span.rank, span.stage): span.end_s - span.start_s for span in spans}
    # There and back again over links of one byte a second.
    assert lasted == {
        (stage % 2 + 2 * replica, stage): pytest.approx(2 * num_bytes[stage])
        for stage in range(4)
        for replica in range(2)
    }


@pytest.mark.parametrize(
    ("num_bytes", "expected_s"),
    [
        ((0.0, 0.0, 0.0, 0.0), 0.0),
        ((0.0, 0.0, 1.0, 1.0), 0.0),  # of each rank's last chunk: hidden under its first
        ((1.0, 0.0, 0.0, 0.0), 2.0),  # what ends last is not hidden
    ],
)
def test_the_sum_of_a_chunk_goes_on_under_the_compute_of_the_next(
    num_bytes: tuple[float, ...], expected_s: float
):
    def end_s(*each: float) -> float:
        return max(span.end_s for span in simulate(chunked_job(*each)).spans)

    without = end_s(0.0, 0.0, 0.0, 0.0)
    assert end_s(*num_bytes) - without == pytest.approx(expected_s)


def test_an_update_waits_for_the_sums_of_all_chunks():
    spans = simulate(chunked_job(0.1, 0.1, 40.0, 0.1)).spans
    last_sum_s = max(s.end_s for s in spans if s.lane is Lane.REDUCE and s.rank == 0)
    first_update_s = min(s.start_s for s in spans if s.lane is Lane.UPDATE and s.rank == 0)
    assert first_update_s == last_sum_s
