"""The laws of the steps of all ranks together, whatever carries them out."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import (
    Act,
    AllReduceKind,
    Step,
    all_gather_steps,
    all_reduce_steps,
    all_to_all_steps,
    broadcast_steps,
    reduce_and_broadcast,
    reduce_scatter_steps,
)
from jaxpipe.collective.shards import ElementRange, share_groups
from jaxpipe.collective.sync_tree import SyncTree, leader, ranks
from tests.collective.strategies import sync_trees

ALGORITHMS = tuple(kind for kind in AllReduceKind if not kind.facts.is_native)
PROGRAMS = st.tuples(
    st.sampled_from(ALGORITHMS), sync_trees(most_ranks=8), st.integers(0, 60), st.integers(1, 40)
)
Programs = dict[int, list[Step]]
Bag = Counter[int]


class Message(NamedTuple):
    reads: ElementRange | None
    content: list[Bag]


def programs(algorithm: AllReduceKind, tree: SyncTree, *, size: int, message_size: int) -> Programs:
    return {
        rank: all_reduce_steps(algorithm, tree, rank, size=size, message_size=message_size)
        for rank in ranks(tree)
    }


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_every_message_is_expected_in_the_order_in_which_it_is_sent(
    drawn: tuple[AllReduceKind, SyncTree, int, int],
):
    algorithm, tree, size, message_size = drawn
    sent: defaultdict[tuple[int, int], list[tuple[ElementRange, bool]]] = defaultdict(list)
    expected: defaultdict[tuple[int, int], list[tuple[ElementRange, bool]]] = defaultdict(list)
    for rank, steps in programs(algorithm, tree, size=size, message_size=message_size).items():
        for step in steps:
            assert 0 <= step.part.start < step.part.stop <= size
            if step.act is Act.SEND:
                sent[rank, step.peer].append((step.part, step.is_far))
            elif step.act in (Act.ADD, Act.TAKE):
                expected[step.peer, rank].append((step.part, step.is_far))
    assert sent == expected


@settings(max_examples=100, deadline=None)
@given(PROGRAMS)
def test_every_element_holds_every_rank_once(drawn: tuple[AllReduceKind, SyncTree, int, int]):
    """Executed on bags of ranks instead of numbers; what a rank brought is never written."""
    algorithm, tree, size, message_size = drawn
    steps = programs(algorithm, tree, size=size, message_size=message_size)
    totals: dict[int, list[Bag | None]] = {rank: [None] * size for rank in steps}
    settled: dict[int, list[bool]] = {rank: [False] * size for rank in steps}
    for rank, step, message in Lockstep(steps, totals):
        for index, element in enumerate(range(step.part.start, step.part.stop)):
            before = Counter([rank]) if step.is_own else totals[rank][element]
            settled[rank][element] = step.act in (Act.TAKE, Act.SETTLE)
            if step.act is Act.TAKE:
                totals[rank][element] = message[index]
            else:
                assert before is not None, f"rank {rank} reads what is not there: {step}"
                totals[rank][element] = before + (message[index] if message else Counter())
    everyone = Counter(ranks(tree))
    assert all(total == [everyone] * size for total in totals.values())
    assert all(all(each) for each in settled.values())


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Programs, int]:
    """Return the steps of any other collective, and its message size."""
    order = draw(st.permutations(range(draw(st.integers(1, 6)))))
    size, message_size = draw(st.integers(0, 30)), draw(st.integers(1, 12))
    each = {"size": size, "message_size": message_size}
    sizes = [[draw(st.integers(0, 9)) for _ in order] for _ in order]
    name = draw(st.sampled_from(["reduce-scatter", "all-gather", "broadcast", "all-to-all"]))
    make: dict[str, Callable[[int], list[Step]]] = {
        "reduce-scatter": lambda rank: reduce_scatter_steps(order, rank, **each),
        "all-gather": lambda rank: all_gather_steps(order, rank, **each),
        "broadcast": lambda rank: broadcast_steps(tuple(order), rank, **each),
        "all-to-all": lambda rank: all_to_all_steps(
            order, rank, sizes=sizes, message_size=message_size
        ),
    }
    return {rank: make[name](rank) for rank in order}, message_size


@settings(max_examples=200, deadline=None)
@given(exchanges())
def test_every_send_meets_a_receive_of_its_size(drawn: tuple[Programs, int]):
    steps_of_rank, message_size = drawn
    sent: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    expected: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, steps in steps_of_rank.items():
        for step in steps:
            assert step.part.size > 0
            if step.act is Act.SEND:
                sent[rank, step.peer].append(step.part.size)
                assert step.peer != rank
                assert step.part.size <= message_size
            elif step.act in (Act.ADD, Act.TAKE):
                expected[step.peer, rank].append(step.part.size)
    assert sent == expected


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_steps_that_run_side_by_side_keep_the_order_of_each_part_and_peer(
    drawn: tuple[AllReduceKind, SyncTree, int, int],
):
    algorithm, tree, size, message_size = drawn
    steps_of_rank = programs(algorithm, tree, size=size, message_size=message_size)
    for rank, steps in steps_of_rank.items():
        reduction, broadcast = reduce_and_broadcast(steps)
        assert Counter([*reduction, *broadcast]) == Counter(steps)
        for part in {step.part for step in steps}:
            kept = [step for step in (*reduction, *broadcast) if step.part == part]
            assert kept == [step for step in steps if step.part == part]
        for peer in ranks(tree):
            for is_send in (True, False):
                assert [
                    step for step in (*reduction, *broadcast) if is_of(step, peer, is_send)
                ] == [step for step in steps if is_of(step, peer, is_send)]
        passes_on = any(step.act is Act.ADD for step in steps) and rank != leader(tree)
        if algorithm.facts.sends_whole_chunks:
            assert bool(broadcast) == passes_on
    # The leader of a tree sends a total down at once, others once it has come.
    assert not reduce_and_broadcast(steps_of_rank[leader(tree)])[1]


def is_of(step: Step, peer: int, is_send: bool) -> bool:
    return step.peer == peer and (step.act is Act.SEND) == is_send


class Lockstep:
    """Carries out the steps of all ranks, with as little buffering as can be.

    A message ends when its receiver comes to the step that waits for it. A rank goes on after a
    send, but stops where it would write over a part of its total that is still being sent. Yields
    each step that writes, with the message if it waits for one.
    """

    def __init__(self, programs: Programs, totals: dict[int, list[Bag | None]]):
        self.programs, self.totals = programs, totals
        self.places = dict.fromkeys(programs, 0)
        self.under_way: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.arrived: dict[int, list[Bag]] = {}

    def __iter__(self) -> Iterator[tuple[int, Step, list[Bag]]]:
        while any(self.places[rank] < len(steps) for rank, steps in self.programs.items()):
            before = dict(self.places), dict(self.arrived)
            for rank in self.programs:
                yield from self.run(rank)
            assert before != (self.places, self.arrived), f"nobody can go on: {self.places}"

    def run(self, rank: int) -> Iterator[tuple[int, Step, list[Bag]]]:
        """Carry out the steps of one rank until it has to wait."""
        for step in self.programs[rank][self.places[rank] :]:
            if step.act is Act.SEND:
                self.send(rank, step)
            elif not self.has_arrived(rank, step) or self.is_being_sent(rank, step.part):
                return
            else:
                yield rank, step, self.arrived.pop(rank, [])
            self.places[rank] += 1

    def send(self, rank: int, step: Step) -> None:
        own = [Counter([rank])] * step.part.size
        part = slice(step.part.start, step.part.stop)
        content = own if step.is_own else [bag for bag in self.totals[rank][part] if bag]
        assert len(content) == step.part.size, f"rank {rank} sends what is not there: {step}"
        reads = None if step.is_own else step.part
        self.under_way[rank, step.peer].append(Message(reads, content))

    def has_arrived(self, rank: int, step: Step) -> bool:
        if step.act is Act.SETTLE or rank in self.arrived:
            return True
        if self.under_way[step.peer, rank]:
            self.arrived[rank] = self.under_way[step.peer, rank].popleft().content
        return rank in self.arrived

    def is_being_sent(self, rank: int, part: ElementRange) -> bool:
        return any(
            message.reads.start < part.stop and part.start < message.reads.stop
            for (source, _), messages in self.under_way.items()
            for message in messages
            if source == rank and message.reads is not None
        )


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "algorithm", [AllReduceKind.RING, AllReduceKind.HALVING, AllReduceKind.SHARDED]
)
def test_shares_move_as_few_bytes_as_can_be(algorithm: AllReduceKind, num_ranks: int):
    order = tuple(range(num_ranks))
    size = 64 * 27 * 25 * 49
    sent = [
        sent_size(all_reduce_steps(algorithm, order, rank, size=size, message_size=size))
        for rank in order
    ]
    assert sum(sent) == pytest.approx(2 * (num_ranks - 1) * size)
    if algorithm is not AllReduceKind.HALVING or num_ranks in (2, 4):
        assert max(sent) == pytest.approx(2 * (num_ranks - 1) * size / num_ranks)


def sent_size(steps: Sequence[Step], *, is_far: bool | None = None) -> int:
    return sum(
        step.part.size for step in steps if step.act is Act.SEND and is_far in (None, step.is_far)
    )


@pytest.mark.parametrize(
    "tree", [((0, 1), (2, 3)), ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1, 2), (3, 4))]
)
def test_every_member_of_an_island_sends_a_share_to_the_other_one(tree: tuple[SyncTree, SyncTree]):
    size = 3_600
    for island in tree:
        members = ranks(island)
        far = [
            sent_size(
                all_reduce_steps(
                    AllReduceKind.HIERARCHICAL, tree, rank, size=size, message_size=size
                ),
                is_far=True,
            )
            for rank in members
        ]
        assert far == [size // len(members)] * len(members)


def test_uneven_islands_exchange_the_intersections_of_their_shares():
    groups = share_groups(((0, 1, 2), (3, 4)), ElementRange(0, 6))
    assert [(tuple(part), members) for part, members in groups] == [
        ((0, 2), (0, 3)),
        ((2, 3), (1, 3)),
        ((3, 4), (1, 4)),
        ((4, 6), (2, 4)),
    ]


def test_messages_are_no_longer_than_asked_for_by_much():
    for algorithm in ALGORITHMS:
        for rank in range(5):
            steps = all_reduce_steps(
                algorithm, ((0, 1, 2), (3, 4)), rank, size=10_000, message_size=100
            )
            assert max(step.part.size for step in steps if step.act is Act.SEND) <= 250
