"""The engine against closed forms of pipelines, and against the ideal timetable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Schedule,
    ScheduleKind,
    backward,
    count_stages,
    eager_one_f_one_b,
    forward,
    generate,
    gpipe,
    lower,
    receive,
    timetable,
)
from jaxpipe.simulate import MessageCosts, Phase, simulate
from jaxpipe.trace import Lane, Truth, messages, summarise
from tests.schedule.strategies import compute_schedules
from tests.simulate.uniform import pipeline_job, seconds, waits_in_order

SIZES = st.integers(1, 6)
SECONDS = st.floats(0.01, 10.0)


@settings(deadline=None)
@given(SIZES, SIZES, SECONDS, SECONDS, st.sampled_from([ScheduleKind.GPIPE, "1f1b"]))
def test_pipelines_without_a_network_take_the_closed_form(
    p: int, m: int, f: float, b: float, kind: str
):
    compute = generate(ScheduleKind(kind), num_stages=p, num_microbatches=m)
    job = pipeline_job(
        lower(compute, tied=False, num_replicas=1), forward_s=(f,) * p, backward_s=(b,) * p
    )
    assert seconds(simulate(job)) == pytest.approx((m + p - 1) * (f + b))


@settings(deadline=None)
@given(SIZES, SIZES, SECONDS, SECONDS, st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.booleans())
def test_gpipe_over_links_takes_the_closed_form(
    p: int, m: int, f: float, b: float, hop: float, latency: float, one_at_a_time: bool
):
    job = pipeline_job(
        lower(gpipe(num_stages=p, num_microbatches=m), tied=False, num_replicas=1),
        forward_s=(f,) * p,
        backward_s=(b,) * p,
        hop_s=hop,
        latency_s=latency,
        messages=MessageCosts(window=1) if one_at_a_time else MessageCosts(),
    )
    num_hops = p - 1
    held = (hop + latency if one_at_a_time else hop) if num_hops else 0.0
    closed = sum(p * c + num_hops * (hop + latency) + (m - 1) * max(c, held) for c in (f, b))
    assert seconds(simulate(job)) == pytest.approx(closed)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), SECONDS, SECONDS)
def test_a_deeper_warm_up_hides_the_messages_that_it_promises_to_hide(
    p: int, rounds: int, f: float, b: float
):
    # Eager 1F1B has warm-ups that differ by 2, so it hides messages of (f + b) / 2.
    m = 4 * p * rounds
    ideal = pipeline_job(
        lower(eager_one_f_one_b(num_stages=p, num_microbatches=m), tied=False, num_replicas=1),
        forward_s=(f,) * p,
        backward_s=(b,) * p,
        latency_s=(f + b) / 2,
    )
    fill = (p - 1) * (f + b) + 2 * (p - 1) * (f + b) / 2
    assert seconds(simulate(ideal)) == pytest.approx(m * (f + b) + fill)


@settings(deadline=None)
@given(compute_schedules(), st.data(), st.sampled_from((0.0, 2.0)))
def test_on_links_that_are_never_full_every_schedule_takes_its_timetable(
    schedule: Schedule, data: st.DataObject, message_s: float
):
    durations = st.tuples(*[SECONDS] * count_stages(schedule))
    f, i, w = (data.draw(durations) for _ in range(3))
    b = tuple(a + c for a, c in zip(i, w, strict=True))
    job = pipeline_job(
        lower(schedule, tied=False, num_replicas=1),
        forward_s=f,
        backward_s=b,
        backward_weight_s=w,
        latency_s=message_s,
    )
    ideal = timetable(schedule, forward_s=f, backward_s=b, backward_weight_s=w, message_s=message_s)
    spans = [span for span in simulate(job).spans if span.lane is Lane.COMPUTE]
    assert max(span.end_s for span in spans) == pytest.approx(ideal.makespan_s)
    assert [
        [(span.name, span.stage, span.microbatch) for span in spans if span.rank == rank]
        for rank in range(len(schedule))
    ] == [[(each.op, each.stage, each.microbatch) for each in program] for program in schedule]


@settings(deadline=None)
@given(compute_schedules(), SECONDS, st.floats(0.0, 3.0), st.integers(1, 3))
def test_any_network_delivers_everything_once_and_only_delays(
    schedule: Schedule, f: float, hop: float, buffers: int
):
    p, num_stages = len(schedule), count_stages(schedule)
    lowered = lower(schedule, tied=False, num_replicas=1)
    job = pipeline_job(
        lowered,
        forward_s=(f,) * num_stages,
        backward_s=(f,) * num_stages,
        hop_s=hop,
        # Chunks may want what was sent later on one link first, which buffers would deadlock.
        messages=MessageCosts(window=2, num_buffers=buffers if p == num_stages else None),
    )
    trace = simulate(job)
    ideal = timetable(schedule, forward_s=(f,) * num_stages, backward_s=(f,) * num_stages)
    assert trace.truth is Truth.SIMULATED
    assert seconds(trace) >= ideal.makespan_s * (1 - 1e-9)
    num_computes = sum(len(program) for program in schedule)
    assert sum(span.lane is Lane.COMPUTE for span in trace.spans) == num_computes
    sends = [span for span in trace.spans if span.lane is Lane.SEND]
    assert len(messages(trace)) == len(sends)
    assert all(sent.end_s <= got.end_s * (1 + 1e-9) for sent, got in messages(trace))
    assert all(waits_in_order(trace, rank=rank) for rank in range(p))


def test_one_buffer_holds_up_a_sender_whose_receiver_is_slow():
    lowered = lower(gpipe(num_stages=2, num_microbatches=3), tied=False, num_replicas=1)
    job = pipeline_job(
        lowered, forward_s=(1.0, 5.0), backward_s=(1.0, 1.0), messages=MessageCosts(num_buffers=1)
    )
    sends = [s for s in simulate(job).spans if s.lane is Lane.SEND and s.rank == 0]
    # Each message waits until the one before it is received: when stage 1 turns to it.
    assert [span.end_s for span in sends] == [1.0, 2.0, 6.0]


def test_the_bubble_of_the_trace_is_that_of_the_timetable():
    schedule = gpipe(num_stages=4, num_microbatches=8)
    job = pipeline_job(
        lower(schedule, tied=False, num_replicas=1), forward_s=(1.0,) * 4, backward_s=(2.0,) * 4
    )
    ideal = timetable(schedule, forward_s=(1.0,) * 4, backward_s=(2.0,) * 4)
    assert summarise(simulate(job))[0].bubble == pytest.approx(ideal.bubble_fraction)


def test_programs_that_wait_for_ever_are_refused():
    schedule = ((forward(0, 0), backward(0, 0)), (receive(1, 0, 0), forward(1, 0)))
    job = pipeline_job(schedule, forward_s=(1.0,) * 2, backward_s=(1.0,) * 2)
    with pytest.raises(
        PlanError, match=r"rank 1, position 0, `receive 0 from stage 0` never completes"
    ):
        simulate(job)


def test_phases_follow_each_other_and_meetings_make_ranks_wait():
    schedule = lower(gpipe(num_stages=2, num_microbatches=1), tied=False, num_replicas=1)
    job = pipeline_job(schedule, forward_s=(1.0, 2.0), backward_s=(1.0, 2.0), latency_s=0.5)
    twice = [
        type(job)(
            cluster=job.cluster,
            placement=job.placement,
            phases=(Phase(schedule=schedule, meets=meets), Phase(schedule=schedule)),
            forward_s=job.forward_s,
            backward_s=job.backward_s,
        )
        for meets in (False, True)
    ]
    once = seconds(simulate(job))
    assert once == 7.0
    # Stage 0 ends last and has to be there first, so its next forward starts at once; a meeting
    # costs it the latency of one round.
    assert [seconds(simulate(each)) for each in twice] == [2 * once, 2 * once + 0.5]
