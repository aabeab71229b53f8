"""Collectives on uniform links against their closed forms, and against what they have to do."""

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import (
    AllReduceKind,
    BarrierKind,
    Collective,
    SyncTree,
    all_gather_transfers,
    all_reduce_transfers,
    all_to_all_transfers,
    barrier_transfers,
    broadcast_transfers,
    ranks,
    reduce_scatter_transfers,
    reduce_transfers,
)
from jaxpipe.collective.sync_tree import chain, chained, flat
from jaxpipe.collective.transfers import in_sequence
from jaxpipe.errors import PlanError
from jaxpipe.plan.cost import transfers_s, tree_s, uniform_links
from jaxpipe.schedule import Bucket, forward, interleaved, lower, reduce
from jaxpipe.simulate import Phase, StepModel, simulate
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


def one_way_at_a_time(tree: SyncTree, num_bytes: float, *, num_chunks: int) -> Collective:
    return in_sequence(
        reduce_transfers(tree, num_bytes=num_bytes, num_chunks=num_chunks),
        broadcast_transfers(tree, num_bytes=num_bytes, num_chunks=num_chunks),
    )


def all_reduce(
    kind: AllReduceKind, n: int, num_bytes: float, *, num_chunks: float = 1.0
) -> Collective:
    """Return an all-reduce of n ranks; of one chunk more than asked for would be a rounding."""
    chunk_bytes = num_bytes / num_chunks * (1 + 1e-12)
    return all_reduce_transfers(kind, flat(range(n)), num_bytes=num_bytes, chunk_bytes=chunk_bytes)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY, CHUNKS)
def test_a_chain_reduces_and_broadcasts_in_chunks(n: int, b: float, a: float, c: int):
    transfers = one_way_at_a_time(chain(range(n)), b, num_chunks=c)
    closed = 2 * ((1 + (n - 2) / c) * b + (n - 1) * a)
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY, CHUNKS)
def test_a_duplex_chain_passes_once(n: int, b: float, a: float, c: int):
    transfers = all_reduce(AllReduceKind.CHAIN, n, b, num_chunks=c)
    closed = (1 + (2 * n - 3) / c) * b + 2 * (n - 1) * a
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY, CHUNKS)
def test_a_chain_of_islands_takes_what_the_planner_thinks(n: int, b: float, a: float, c: int):
    links = uniform_links(n, latency_s=a, bandwidth_bytes_per_s=1.0)
    closed = tree_s(links, chain(range(n)), num_bytes=b, chunk_bytes=b / c * (1 + 1e-12))
    transfers = all_reduce(AllReduceKind.CHAIN, n, b, num_chunks=c)
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY)
def test_a_ring_takes_two_rounds_of_parts(n: int, b: float, a: float):
    transfers = all_reduce_transfers(AllReduceKind.RING, flat(range(n)), num_bytes=b)
    assert duration(n, transfers, latency_s=a) == pytest.approx(2 * (n - 1) * (b / n + a))
    for half in (reduce_scatter_transfers, all_gather_transfers):
        took_s = duration(n, half(range(n), num_bytes=b), latency_s=a)
        assert took_s == pytest.approx((n - 1) * (b / n + a))


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY)
def test_direct_exchanges_take_two_messages_where_pairs_limit(n: int, b: float, a: float):
    central = duration(n, all_reduce(AllReduceKind.CENTRAL, n, b), latency_s=a)
    sharded = duration(n, all_reduce(AllReduceKind.SHARDED, n, b), latency_s=a)
    assert central == pytest.approx(2 * (b + a))
    assert sharded == pytest.approx(2 * (b / n + a) if n > 2 else b + a)


@settings(deadline=None)
@given(NUM_RANKS, BYTES, LATENCY)
def test_an_all_to_all_takes_its_largest_block_where_pairs_limit(n: int, b: float, a: float):
    sizes = [[1 + (i * j) % 3 for j in range(n)] for i in range(n)]
    largest = max(sizes[i][j] for i in range(n) for j in range(n) if i != j)
    transfers = all_to_all_transfers(range(n), sizes, message_size=5, bytes_per_element=b)
    assert duration(n, transfers, latency_s=a) == pytest.approx(largest * b + a)


@settings(deadline=None)
@given(st.integers(2, 70), LATENCY)
def test_a_barrier_takes_a_latency_for_each_doubling(n: int, a: float):
    closed = math.ceil(math.log2(n)) * a
    assert duration(n, barrier_transfers(range(n)), latency_s=a) == pytest.approx(closed)


@settings(deadline=None)
@given(st.integers(2, 70), LATENCY)
def test_a_rendezvous_barrier_takes_a_round_trip_for_each_doubling(n: int, a: float):
    closed = math.ceil(math.log2(n)) * 2 * a
    transfers = barrier_transfers(range(n), BarrierKind.RENDEZVOUS)
    assert duration(n, transfers, latency_s=a) == pytest.approx(closed)


GATHERING: dict[str, Callable[[int], Collective]] = {
    "one way at a time": lambda n: one_way_at_a_time(chain(range(n)), 1.0, num_chunks=3),
    "ring": lambda n: in_sequence(
        reduce_scatter_transfers(range(n), num_bytes=1.0, num_chunks=2),
        all_gather_transfers(range(n), num_bytes=1.0, num_chunks=2),
    ),
    "all-gather": lambda n: all_gather_transfers(range(n), num_bytes=1.0),
    "reduce-scatter": lambda n: reduce_scatter_transfers(range(n), num_bytes=1.0),
    "all-to-all": lambda n: all_to_all_transfers(range(n), [[7] * n] * n, message_size=2),
    "barrier": lambda n: barrier_transfers(range(n)),
    "rendezvous barrier": lambda n: barrier_transfers(range(n), BarrierKind.RENDEZVOUS),
}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", GATHERING)
def test_something_of_every_rank_reaches_every_rank(name: str, num_ranks: int):
    collective = GATHERING[name](num_ranks)
    assert all(
        each == set(range(num_ranks)) for each in origins(collective, range(num_ranks)).values()
    )
    for transfer in collective:
        assert all(collective[need].destination == transfer.source for need in transfer.after)


def origins(collective: Collective, members: Iterable[int]) -> dict[int, set[int]]:
    """Return the ranks of which something may have reached each rank: by what transfers await."""
    reached = {rank: {rank} for rank in members}
    carried: list[set[int]] = []
    for transfer in collective:
        carried.append({transfer.source}.union(*(carried[need] for need in transfer.after)))
        reached[transfer.destination] |= carried[-1]
    return reached


@pytest.mark.parametrize("kind", [kind for kind in AllReduceKind if kind != "library"])
@pytest.mark.parametrize("tree", [3, (0, 1), (0, 2, 1), ((0, 1), 2), ((0, (1, 4)), (2, 3, 5))])
def test_every_rank_gets_all_of_every_rank_whatever_the_algorithm(
    kind: AllReduceKind, tree: SyncTree
):
    collective = all_reduce_transfers(kind, tree, num_bytes=12.0, chunk_bytes=5.0)
    members = ranks(tree)
    assert all(each == set(members) for each in origins(collective, members).values())
    taken = {
        rank: sum(t.num_bytes for t in collective if t.destination == rank) for rank in members
    }
    assert all(taken[rank] >= 12.0 - 1e-9 for rank in members if len(members) > 1)


@settings(deadline=None)
@given(st.integers(3, 7), BYTES, LATENCY)
def test_a_flat_share_takes_what_the_planner_thinks(n: int, b: float, a: float):
    tree = tuple(range(n))
    where = cluster(n, latency_s=a, nic_bytes_per_s=1.0)
    collective = all_reduce_transfers(AllReduceKind.HIERARCHICAL, tree, num_bytes=b)
    job = collective_job(where, collective, schedule=_JOIN)
    took_s = max(s.end_s for s in simulate(job).spans if s.lane is Lane.REDUCE) - 1.0
    links = uniform_links(n, latency_s=a, bandwidth_bytes_per_s=1.0)
    assert took_s == pytest.approx(transfers_s(links, collective))


@settings(deadline=None)
@given(st.integers(2, 4), BYTES, LATENCY)
def test_two_islands_that_share_take_what_the_planner_thinks(q: int, b: float, a: float):
    tree = (tuple(range(q)), tuple(range(q, 2 * q)))
    where = cluster(2 * q, latency_s=a, nic_bytes_per_s=1.0)
    collective = all_reduce_transfers(AllReduceKind.HIERARCHICAL, tree, num_bytes=b)
    job = collective_job(where, collective, schedule=_JOIN)
    took_s = max(s.end_s for s in simulate(job).spans if s.lane is Lane.REDUCE) - 1.0
    closed_s = 2 * (a + b * (q - 1) / q) + a + b / q if q > 2 else 3 * a + 1.5 * b
    assert took_s == pytest.approx(closed_s)


def test_what_a_library_does_is_not_simulated():
    with pytest.raises(PlanError, match=r"`plan\.all_reduce` must not be library in a simulation"):
        all_reduce_transfers(AllReduceKind.LIBRARY, (0, 1), num_bytes=1.0)


def test_islands_sum_before_they_cross():
    tree = ((0, 1), (2, 3))
    crossing = [
        (t.source, t.destination)
        for t in all_reduce_transfers(AllReduceKind.TREE, chained(tree), num_bytes=1.0)
        if (t.source < 2) != (t.destination < 2)
    ]
    assert ranks(tree) == (0, 1, 2, 3)
    assert crossing == [(2, 0), (0, 2)]


def test_an_all_reduce_waits_for_the_last_of_its_ranks():
    collective = one_way_at_a_time((0, 1), 4.0, num_chunks=1)
    job = collective_job(cluster(2), collective, schedule=_JOIN)
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
                all_reduce_transfers(AllReduceKind.TREE, (stage % 2, stage % 2 + 2), num_bytes=each)
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
