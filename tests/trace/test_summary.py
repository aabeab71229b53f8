"""Summaries: seconds by rank and step, and the bubble."""

from dataclasses import replace

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
            bubble=0.5,
            ranks=(
                RankSummary(rank=0, compute_s=3.0, receive_s=2.0, reduce_s=0.0),
                RankSummary(rank=1, compute_s=2.0, receive_s=0.0, reduce_s=4.0),
            ),
        ),
        StepSummary(
            step=6,
            pipeline_s=1.0,
            bubble=0.5,
            ranks=(RankSummary(rank=0, compute_s=1.0, receive_s=0.0, reduce_s=0.0), idle),
        ),
    )


def test_without_compute_there_is_no_bubble():
    trace = Trace(
        truth=Truth.MEASURED, rank_names=("a",), spans=(span(Lane.REDUCE, 0.0, 1.0, step=2),)
    )
    assert [each.bubble for each in summarise(trace)] == [None]
    assert summarise(Trace(truth=Truth.MEASURED, rank_names=("a",), spans=())) == ()


def test_a_replica_has_the_phase_of_its_first_stage():
    computes = (
        span(Lane.COMPUTE, 0.0, 4.0, rank=0),
        span(Lane.COMPUTE, 5.0, 9.0, rank=1),  # later than the phase of its replica: of no effect
        span(Lane.COMPUTE, 100.0, 101.0, rank=2),
        span(Lane.COMPUTE, 107.0, 108.0, rank=2),
        span(Lane.COMPUTE, 101.0, 104.0, rank=3),
    )
    stages = (0, 1, 0, 0, 1)
    spans = tuple(replace(each, stage=stage) for each, stage in zip(computes, stages, strict=True))
    (step,) = summarise(Trace(truth=Truth.MEASURED, rank_names=tuple("abcd"), spans=spans))
    assert step.pipeline_s == 6.0
    assert step.bubble == 1 - (4 + 4 + 2 + 3) / (2 * (4 + 8))


def test_the_figure_that_a_run_has_logged_is_its_bubble():
    spans = tuple(span(Lane.COMPUTE, 0.0, 1.0, step=step) for step in (7, 8))
    trace = Trace(truth=Truth.MEASURED, rank_names=("a",), spans=spans, bubbles=((8, 0.123),))
    assert [step.bubble for step in summarise(trace)] == [0.0, 0.123]


@given(trace=traces())
def test_a_rank_computes_for_no_longer_than_the_step(trace: Trace):
    for step in summarise(trace):
        assert len(step.ranks) == len(trace.rank_names)
        spans = [each for each in trace.spans if each.step == step.step]
        seconds = max(s.end_s for s in spans) - min(s.start_s for s in spans)
        assert all(rank.compute_s <= seconds * (1 + 1e-9) for rank in step.ranks)
        assert step.bubble is None or step.bubble < 1.0
