"""Messages: which send meets which receive."""

import pytest

from jaxpipe.trace import Lane, Span, Trace, Truth, messages
from tests.trace.strategies import span


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


def test_a_trace_of_nothing_has_no_messages():
    assert messages(trace_of()) == ()
