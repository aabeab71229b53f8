"""The one that all wait for is found, and nobody who is merely slow."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.runtime.watchdog import (
    CauseKind,
    Deadlines,
    Heartbeat,
    Verdict,
    explain,
    find_culprit,
)


def pulse(rank: int, *waits_for: int, overdue: bool = True, step: int = 7) -> Heartbeat:
    doing = "reduce scalars" if len(waits_for) > 1 else f"receive from {waits_for}"
    return Heartbeat(
        rank=rank,
        stage=0,
        step=step,
        doing=doing,
        waits_for=waits_for,
        overdue=overdue,
        beat=0,
        process=1,
        host="a",
    )


@given(order=st.permutations(range(6)), length=st.integers(1, 6), is_stopped=st.booleans())
def test_a_chain_of_any_length_and_order(order: list[int], length: int, is_stopped: bool) -> None:
    chain = order[:length]
    pulses = {rank: pulse(rank, after) for rank, after in pairwise(chain)}
    pulses[chain[-1]] = pulse(chain[-1])
    stale = {chain[-1]} if is_stopped else set()
    kind = CauseKind.STOPPED if is_stopped else CauseKind.HANG
    for position, start in enumerate(chain):
        found = find_culprit(pulses, start=start, stale=stale)
        assert found == Verdict(rank=chain[-1], kind=kind, chain=tuple(chain[position:]))


@given(order=st.permutations(range(4)), slow=st.integers(0, 3))
def test_nobody_is_found_while_one_is_in_time(order: list[int], slow: int) -> None:
    pulses = {rank: pulse(rank, after) for rank, after in pairwise(order)}
    pulses[order[-1]] = pulse(order[-1])
    late = order[slow]
    pulses[late] = pulse(late, *pulses[late].waits_for, overdue=False)
    assert find_culprit(pulses, start=order[0], stale=set()) is None


@given(last=st.integers(0, 3), start=st.integers(0, 3))
def test_no_link_is_cut_between_ranks_that_wait_for_the_last_one(last: int, start: int) -> None:
    """All have waited too long for one that compiles, and it has just come: the wait ends now."""
    everyone = range(4)
    pulses = {
        rank: pulse(rank, *(other for other in everyone if other != rank), overdue=rank != last)
        for rank in everyone
    }
    assert find_culprit(pulses, start=start, stale=set()) is None
    pulses[last] = replace(pulses[last], overdue=True)
    verdict = find_culprit(pulses, start=start, stale=set())
    assert verdict is not None
    assert verdict.kind is CauseKind.LINK


def test_a_rank_of_which_nothing_is_known_is_not_accused() -> None:
    assert find_culprit({1: pulse(1, 0)}, start=1, stale=set()) is None


def test_a_circle_is_told_as_such() -> None:
    pulses = {0: pulse(0, 1), 1: pulse(1, 2), 2: pulse(2, 1)}
    expected = Verdict(rank=1, kind=CauseKind.LINK, chain=(0, 1, 2, 1))
    assert find_culprit(pulses, start=0, stale=set()) == expected
    assert explain(expected, pulses, stale=set()) == (
        "messages do not arrive between rank 1 on a and rank 2 on a"
    )


def test_of_a_collective_all_ends_are_named() -> None:
    pulses = {
        rank: replace(pulse(rank, *(r for r in range(3) if r != rank)), host=f"h{rank}")
        for rank in range(3)
    }
    found = find_culprit(pulses, start=2, stale=set())
    assert found is not None
    assert explain(found, pulses, stale=set()) == (
        "messages do not arrive between rank 0 on h0 and rank 1 on h1 and rank 2 on h2"
    )


def test_a_host_is_told_from_a_rank() -> None:
    pulses = {rank: replace(pulse(rank, 2), host="ab"[rank // 2]) for rank in range(4)}
    found = find_culprit(pulses, start=0, stale={2, 3})
    assert found is not None
    assert found == Verdict(rank=2, kind=CauseKind.STOPPED, chain=(0, 2))
    assert explain(found, pulses, stale={2, 3}) == (
        "its host b is gone or cut off: none of its ranks 2, 3 sends a heartbeat; "
        "rank 0 waits for rank 2"
    )
    assert explain(found, pulses, stale={2}).startswith("it sends no heartbeat; rank 0")


@pytest.mark.parametrize("culprit", [1, 2, 3])
def test_of_all_that_a_sum_waits_for_it_is_the_one_that_has_not_come(culprit: int) -> None:
    everyone = range(4)
    pulses = {rank: pulse(rank, *(r for r in everyone if r != rank)) for rank in everyone}
    pulses[culprit] = pulse(culprit)
    found = find_culprit(pulses, start=0, stale=set())
    assert found == Verdict(rank=culprit, kind=CauseKind.HANG, chain=(0, culprit))
    pulses[culprit] = pulse(culprit, *(r for r in everyone if r != culprit))
    found = find_culprit(pulses, start=0, stale={culprit})
    assert found == Verdict(rank=culprit, kind=CauseKind.STOPPED, chain=(0, culprit))


@given(st.lists(st.floats(0, 100), max_size=700))
def test_a_limit_is_never_shorter_than_most_of_what_was_seen(durations: list[float]) -> None:
    deadlines = Deadlines(least_s=2.5, unlearned_s=120.0)
    for duration in durations:
        deadlines.add("receive", duration)
    limit = deadlines.limit_s("receive")
    assert 2.5 <= limit <= 120.0
    assert deadlines.limit_s("forward") == 120.0
    longer = sum(duration > limit for duration in durations[-512:])
    assert longer <= 0.01 * len(durations[-512:])
