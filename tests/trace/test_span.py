"""Messages pair a send with a receive; spans that overlap never share a row."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.trace import Lane, Span, Trace, Truth, messages
from jaxpipe.trace.span import rows
from tests.trace.strategies import span, spans


def trace_of(*spans: Span) -> Trace:
    return Trace(truth=Truth.MEASURED, rank_names=("a", "b"), spans=spans)


SEND = span(Lane.SEND, 0.0, 2.0, rank=0, peer=1, microbatch=4)
RECEIVE = span(Lane.RECEIVE, 1.0, 2.0, rank=1, peer=0, microbatch=4)


def test_the_two_ends_of_a_message_are_paired():
    assert messages(trace_of(RECEIVE, SEND)) == ((SEND, RECEIVE),)


@pytest.mark.parametrize(
    "other",
    [
        span(Lane.RECEIVE, 1.0, 2.0, rank=1, peer=0, microbatch=5),
        span(Lane.RECEIVE, 1.0, 2.0, rank=1, peer=0, microbatch=4, step=1),
        span(Lane.RECEIVE, 1.0, 2.0, rank=0, peer=1, microbatch=4),
        span(Lane.RECEIVE, 1.0, 2.0, rank=1, microbatch=4),
        span(Lane.REDUCE, 1.0, 2.0, rank=1, peer=0, microbatch=4),
    ],
)
def test_spans_of_different_messages_are_not(other: Span):
    assert messages(trace_of(SEND, other)) == ()


def test_of_equal_messages_the_first_sent_is_the_first_received():
    later = span(Lane.SEND, 5.0, 6.0, rank=0, peer=1, microbatch=4)
    last = span(Lane.RECEIVE, 6.0, 6.5, rank=1, peer=0, microbatch=4)
    assert messages(trace_of(later, last, RECEIVE, SEND)) == ((SEND, RECEIVE), (later, last))
    assert messages(trace_of(later, SEND, RECEIVE)) == ((SEND, RECEIVE),)


def test_messages_between_chunks_of_two_ranks_are_of_neighbouring_stages():
    sends = [
        replace(span(Lane.SEND, n, n + 1.0, rank=0, peer=1, microbatch=4), stage=2 * n)
        for n in range(3)
    ]
    receives = [
        replace(span(Lane.RECEIVE, n, n + 1.0, rank=1, peer=0, microbatch=4), stage=2 * n + 1)
        for n in range(3)
    ]
    assert messages(trace_of(*sends, *receives)) == tuple(zip(sends, receives, strict=True))
    # Rank 1 was killed and has lost its first span: no message of stage 0 ends at stage 3.
    assert messages(trace_of(sends[0], sends[1], receives[1])) == ((sends[1], receives[1]),)


def test_a_trace_of_nothing_has_no_messages():
    assert messages(trace_of()) == ()


def overlap(a: Span, b: Span) -> bool:
    return max(a.start_s, b.start_s) < min(a.end_s, b.end_s)


@given(members=st.lists(spans(num_ranks=1), max_size=12))
def test_spans_on_a_row_do_not_overlap_and_rows_are_few(members: list[Span]):
    placed = rows(members)
    assert len(placed) == len(members)
    for i in range(len(members)):
        for j in range(i):
            assert placed[i] != placed[j] or not overlap(members[i], members[j])
    lasting = [each for each in members if each.start_s < each.end_s]
    most_open = max(
        (sum(a.start_s <= b.start_s < a.end_s for a in lasting) for b in lasting), default=0
    )
    if len(lasting) == len(members):
        assert len(set(placed)) == most_open


def test_no_spans_need_no_rows():
    assert rows([]) == ()


def test_spans_that_touch_share_a_row():
    assert rows([span(Lane.SEND, 1.0, 2.0), span(Lane.SEND, 0.0, 1.0)]) == (0, 0)
