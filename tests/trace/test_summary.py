"""Summaries: seconds by rank and step, and the bubble."""

from hypothesis import given

from jaxpipe.trace import Lane, RankSummary, StepSummary, Trace, Truth, summarise
from tests.trace.strategies import span, traces


def test_seconds_are_counted_by_rank_and_step():
    trace = Trace(
        truth=Truth.MEASURED,
        rank_names=("a", "b"),
        spans=(
            span(Lane.COMPUTE, 10.0, 11.0, step=5),
            span(Lane.COMPUTE, 13.0, 15.0, step=5),
            span(Lane.SEND, 11.0, 12.0, step=5),
            span(Lane.RECEIVE, 11.0, 13.0, step=5),
            span(Lane.COMPUTE, 12.0, 14.0, rank=1, step=5),
            span(Lane.REDUCE, 15.0, 18.0, rank=1, step=5),
            span(Lane.REDUCE, 16.0, 19.0, rank=1, step=5),
            span(Lane.UPDATE, 19.0, 29.0, rank=1, step=5),
            span(Lane.COMPUTE, 30.0, 31.0, step=6),
        ),
    )
    idle = RankSummary(rank=1, compute_s=0.0, receive_s=0.0, reduce_s=0.0)
    assert summarise(trace) == (
        StepSummary(
            step=5,
            pipeline_s=5.0,
            bubble_fraction=0.5,
            ranks=(
                RankSummary(rank=0, compute_s=3.0, receive_s=2.0, reduce_s=0.0),
                RankSummary(rank=1, compute_s=2.0, receive_s=0.0, reduce_s=4.0),
            ),
        ),
        StepSummary(
            step=6,
            pipeline_s=1.0,
            bubble_fraction=0.5,
            ranks=(RankSummary(rank=0, compute_s=1.0, receive_s=0.0, reduce_s=0.0), idle),
        ),
    )


def test_without_compute_there_is_no_bubble():
    trace = Trace(
        truth=Truth.MEASURED, rank_names=("a",), spans=(span(Lane.REDUCE, 0.0, 1.0, step=2),)
    )
    assert [each.bubble_fraction for each in summarise(trace)] == [None]
    assert summarise(Trace(truth=Truth.MEASURED, rank_names=("a",), spans=())) == ()


@given(trace=traces())
def test_the_bubble_is_a_fraction(trace: Trace):
    for step in summarise(trace):
        assert len(step.ranks) == len(trace.rank_names)
        assert all(rank.compute_s <= step.pipeline_s * (1 + 1e-9) for rank in step.ranks)
        if step.bubble_fraction is not None:
            assert -1e-9 <= step.bubble_fraction < 1.0
