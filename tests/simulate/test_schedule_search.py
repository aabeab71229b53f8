"""The search for a schedule: never worse than a named one, and within memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    ScheduleKind,
    check,
    eager_one_f_one_b,
    generate,
    gpipe,
    interleaved,
    lower,
    peak_live,
)
from jaxpipe.simulate import Search, StepModel, auto_schedule, named_schedules
from tests.simulate.uniform import pipeline_job

SECONDS = st.floats(0.1, 3.0)


def job_of(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], *, latency_s: float
) -> StepModel:
    compute = gpipe(num_stages=len(forward_s), num_microbatches=1)
    return pipeline_job(
        lower(compute, tied=False, num_replicas=1),
        forward_s=forward_s,
        backward_s=backward_s,
        latency_s=latency_s,
    )


@st.composite
def searches(draw: st.DrawFn) -> Search:
    num_stages = draw(st.integers(1, 4))
    durations = st.tuples(*[SECONDS] * num_stages)
    return Search(
        job=job_of(draw(durations), draw(durations), latency_s=draw(st.floats(0.0, 3.0))),
        num_microbatches=draw(st.integers(1, 8)),
        max_live=draw(st.tuples(*[st.integers(1, 8)] * num_stages)),
        tied=draw(st.booleans()),
    )


@settings(deadline=None, max_examples=40)
@given(searches())
def test_no_named_schedule_that_fits_is_faster(search: Search):
    best = auto_schedule(search, num_rounds=1)
    named = named_schedules(search)
    assert named
    for each in (best, *named):
        peaks = zip(peak_live(each.compute), search.max_live, strict=True)
        assert all(peak <= limit for peak, limit in peaks)
        assert best.step_s <= each.step_s
    check(lower(best.compute, tied=search.tied, num_replicas=1))


@settings(deadline=None, max_examples=20)
@given(searches())
def test_with_room_enough_all_named_schedules_are_tried(search: Search):
    size = len(search.max_live)
    room = 2 * size + search.num_microbatches
    wide = Search(job=search.job, num_microbatches=search.num_microbatches, max_live=(room,) * size)
    kinds = [kind for kind in ScheduleKind if kind is not ScheduleKind.INTERLEAVED]
    assert [each.kind for each in named_schedules(wide)] == kinds
    for each in named_schedules(wide):
        assert each.kind is not None
        assert each.compute == generate(
            each.kind, num_stages=size, num_microbatches=search.num_microbatches
        )


@pytest.mark.parametrize(("limit", "ratio"), [(4, 1.36), (5, 1.18), (7, 1.06), (10, 1.06)])
def test_on_slow_links_memory_buys_speed(limit: int, ratio: float):
    # A message takes as long as a forward; 1F1B takes 1.64 of the ideal time, eager 1F1B 1.16.
    search = Search(
        job=job_of((1.0,) * 4, (2.0,) * 4, latency_s=1.0),
        num_microbatches=32,
        max_live=(limit,) * 4,
    )
    assert round(auto_schedule(search).step_s / 96, 2) <= ratio


def test_a_rank_that_keeps_one_microbatch_has_a_schedule():
    search = Search(
        job=job_of((1.0,) * 3, (2.0,) * 3, latency_s=0.0), num_microbatches=3, max_live=(1, 3, 3)
    )
    (only,) = named_schedules(search)
    assert only.compute == eager_one_f_one_b(num_stages=3, num_microbatches=3, warmup=(1, 1, 1))


def test_what_cannot_be_searched_for_is_refused():
    job = job_of((1.0,) * 2, (2.0,) * 2, latency_s=0.0)
    with pytest.raises(PlanError, match=r"for each of 2 ranks, not \(0, 1\)"):
        Search(job=job, num_microbatches=2, max_live=(0, 1))
    chunks = interleaved(num_stages=4, num_microbatches=2, num_chunks=2)
    chunked = pipeline_job(
        lower(chunks, tied=False, num_replicas=1), forward_s=(1.0,) * 4, backward_s=(2.0,) * 4
    )
    with pytest.raises(PlanError, match="`num_chunks` must be 1 to search for a schedule, not 2"):
        Search(job=chunked, num_microbatches=2, max_live=(2, 2))
