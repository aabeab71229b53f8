"""Blocking messages against closed forms, and against the programs of all schedules."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.schedule import Schedule, ScheduleKind, generate, lower
from jaxpipe.simulate import simulate
from jaxpipe.trace import Lane
from tests.schedule.strategies import compute_schedules
from tests.simulate.uniform import pipeline_job, seconds

SIZES = st.integers(1, 6)
SECONDS = st.floats(0.01, 10.0)


def _lowered(kind: ScheduleKind, p: int, m: int) -> Schedule:
    compute = generate(kind, num_stages=p, num_microbatches=m)
    return lower(compute, tied=False, num_replicas=1)


def _blocking_s(schedule: Schedule, forward_s: tuple[float, ...], b: float, hop_s: float) -> float:
    job = pipeline_job(schedule, forward_s=forward_s, backward_s=(b,) * len(forward_s), hop_s=hop_s)
    return seconds(simulate(replace(job, blocking=True)))


@settings(deadline=None)
@given(SIZES, SIZES, SECONDS, SECONDS, st.floats(0.0, 10.0))
def test_gpipe_takes_the_closed_form(p: int, m: int, f: float, b: float, hop: float):
    """A stage receives and sends each microbatch, and a full pipeline waits for both ends."""

    def phase_s(c: float) -> float:
        fill = (p - 1) * (c + hop) + c
        # Each stage but the first two and the last receives its next message before it sends.
        return fill + (m - 1) * (c + min(p - 1, 2) * hop) + (max(0, p - 3) * hop if m > 1 else 0.0)

    taken = _blocking_s(_lowered(ScheduleKind.GPIPE, p, m), (f,) * p, b, hop)
    assert taken == pytest.approx(phase_s(f) + phase_s(b))


@settings(deadline=None)
@given(st.integers(1, 8), SECONDS, SECONDS, st.floats(0.0, 10.0))
def test_two_stages_of_1f1b_take_the_closed_form(m: int, f: float, b: float, hop: float):
    taken = _blocking_s(_lowered(ScheduleKind.ONE_F_ONE_B, 2, m), (f, f), b, hop)
    assert taken == pytest.approx((m + 1) * (f + b) + 2 * m * hop)


@settings(deadline=None)
@given(st.integers(3, 5), st.floats(0.1, 10.0), st.floats(1.0, 3.0), st.floats(0.0, 0.25))
def test_an_inner_stage_of_1f1b_pays_for_four_messages(p: int, f: float, times: float, part: float):
    """As long as messages are short, and backwards no shorter than forwards."""
    b, hop = times * f, part * f
    num = 4 * p  # the pipeline is full, and the number is even
    longer, shorter = (
        _blocking_s(_lowered(ScheduleKind.ONE_F_ONE_B, p, m), (f,) * p, b, hop)
        for m in (num + 2, num)
    )
    assert longer - shorter == pytest.approx(2 * (f + b + 4 * hop))


@settings(deadline=None, max_examples=40)
@given(compute_schedules(), st.floats(0.0, 5.0))
def test_no_schedule_deadlocks_and_no_rank_computes_during_its_messages(
    compute: Schedule, hop: float
):
    schedule = lower(compute, tied=False, num_replicas=1)
    num_stages = 1 + max(i.stage for program in compute for i in program)
    job = pipeline_job(
        schedule, forward_s=(1.0,) * num_stages, backward_s=(2.0,) * num_stages, hop_s=hop
    )
    trace = simulate(replace(job, blocking=True))
    assert seconds(trace) >= seconds(simulate(job)) - 1e-9
    sends = [span for span in trace.spans if span.lane is Lane.SEND]
    computes = [span for span in trace.spans if span.lane is Lane.COMPUTE]
    for send in sends:
        for span in computes:
            ends = (send.rank, send.peer)
            moving = span.rank in ends and span.end_s > send.end_s - hop + 1e-9
            assert not (moving and span.start_s < send.end_s - 1e-9)


def test_without_messages_replicas_block_nobody():
    """One stage has nothing to send: both modes are equal."""
    schedule = _lowered(ScheduleKind.GPIPE, 1, 3)
    assert _blocking_s(schedule, (1.0,), 2.0, 5.0) == 9.0
