"""Transfers are the messages that ranks send: same pairs, same bytes, after what they wait for."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import (
    Act,
    AllReduceKind,
    Collective,
    Step,
    SyncTree,
    Transfer,
    all_gather_transfers,
    all_reduce_steps,
    all_reduce_transfers,
    broadcast_transfers,
    ranks,
    reduce_scatter_transfers,
    reduce_transfers,
    transfers,
)
from jaxpipe.collective.shards import ElementRange
from jaxpipe.collective.transfers import in_sequence, side_by_side
from jaxpipe.comm import CountingTransport, Transport, WireFormat, all_reduce, run_ranks
from tests.collective.strategies import sync_trees

KINDS = [kind for kind in AllReduceKind if not kind.facts.is_native]


def bytes_by_pair(collective: Collective) -> Counter[tuple[int, int]]:
    moved: Counter[tuple[int, int]] = Counter()
    for each in collective:
        moved[each.source, each.destination] += round(each.num_bytes)
    return moved


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), sync_trees(), st.integers(0, 50), st.integers(1, 20))
def test_are_what_a_transport_is_asked_to_send(
    kind: AllReduceKind, tree: SyncTree, size: int, message_size: int
):
    def work(transport: Transport) -> Counter[int]:
        counted = CountingTransport(transport)
        all_reduce(
            counted,
            np.ones(size, np.float32),
            tree,
            tag=0,
            timeout_s=10.0,
            algorithm=kind,
            wire=WireFormat(chunk_bytes=4 * message_size),
        )
        return counted.num_bytes_to()

    sent = {
        (source, to): num_bytes
        for source, counts in enumerate(run_ranks(len(ranks(tree)), work))
        for to, num_bytes in counts.items()
    }
    programs = {
        rank: all_reduce_steps(kind, tree, rank, size=size, message_size=message_size)
        for rank in ranks(tree)
    }
    assert bytes_by_pair(transfers(programs, bytes_per_element=4.0)) == sent


@settings(deadline=None)
@given(st.sampled_from(KINDS), sync_trees(most_ranks=8), st.sampled_from([3.0, 40.0]))
def test_each_waits_for_what_its_source_has_received(
    kind: AllReduceKind, tree: SyncTree, chunk_bytes: float
):
    collective = all_reduce_transfers(kind, tree, num_bytes=24.0, chunk_bytes=chunk_bytes)
    for position, each in enumerate(collective):
        assert all(need < position for need in each.after)
        assert all(collective[need].destination == each.source for need in each.after)
        assert len({collective[need].source for need in each.after}) == len(each.after)


@given(st.permutations(range(5)), st.sampled_from([1, 2, 4]))
def test_the_halves_of_a_ring_move_half_of_it(order: list[int], num_chunks: int):
    whole = all_reduce_transfers(AllReduceKind.RING, tuple(order), num_bytes=80.0)
    halves = [
        make(order, num_bytes=80.0, num_chunks=num_chunks)
        for make in (reduce_scatter_transfers, all_gather_transfers)
    ]
    assert sum(map(bytes_by_pair, halves), Counter()) == bytes_by_pair(whole)


@given(sync_trees())
def test_a_reduce_and_a_broadcast_move_what_an_all_reduce_along_the_tree_does(tree: SyncTree):
    there, back = (make(tree, num_bytes=8.0) for make in (reduce_transfers, broadcast_transfers))
    whole = all_reduce_transfers(AllReduceKind.TREE, tree, num_bytes=8.0)
    assert bytes_by_pair(in_sequence(there, back)) == bytes_by_pair(whole)


def test_copies_do_not_wait_for_each_other():
    one = (Transfer(0, 1, 2.0), Transfer(1, 0, 2.0, (0,)))
    assert side_by_side(one, times=2) == (*one, Transfer(0, 1, 2.0), Transfer(1, 0, 2.0, (2,)))
    assert side_by_side(one, times=0) == ()


def test_a_sequence_keeps_what_waits_inside_of_the_second():
    first = (Transfer(0, 1, 1.0), Transfer(2, 1, 1.0))
    second = (Transfer(1, 0, 1.0), Transfer(0, 2, 1.0, (0,)))
    assert [each.after for each in in_sequence(first, second)] == [(), (), (0, 1), (2,)]


def test_the_second_of_a_sequence_waits_at_each_rank_for_the_first():
    first = (Transfer(0, 1, 1.0), Transfer(2, 1, 1.0))
    second = (Transfer(0, 1, 1.0), Transfer(1, 2, 1.0, (0,)))
    assert [each.after for each in in_sequence(first, second)] == [(), (), (), (0, 1, 2)]


def test_steps_that_wait_for_ever_or_for_nothing_are_mistakes():
    part = ElementRange(0, 1)
    with pytest.raises(AssertionError, match=r"ranks \[0\] wait for messages that no step sends"):
        transfers({0: [Step(Act.TAKE, part, 1)], 1: []})
    with pytest.raises(AssertionError, match="messages are sent that no step receives"):
        transfers({0: [Step(Act.SEND, part, 1)], 1: []})
