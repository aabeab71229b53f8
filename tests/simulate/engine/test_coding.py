"""The seconds of encoding and decoding, against closed forms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind, Coding, all_reduce_transfers
from jaxpipe.schedule import Op, ScheduleKind, generate, lower
from jaxpipe.simulate import simulate
from jaxpipe.trace import Lane
from tests.simulate.uniform import cluster, collective_job, pipeline_job, seconds

SECONDS = st.floats(0.01, 10.0)


@settings(deadline=None)
@given(st.integers(1, 6), SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_pipeline_is_as_fast_as_the_slowest_of_its_threads(
    m: int, f: float, b: float, encode: float, decode: float
):
    """Two stages: one computes, its thread encodes, the other decodes and then computes."""

    def phase_s(c: float) -> float:
        return c + encode + decode + c + (m - 1) * max(c, encode, decode + c)

    compute = generate(ScheduleKind.GPIPE, num_stages=2, num_microbatches=m)
    schedule = lower(compute, tied=False, num_replicas=1)
    job = pipeline_job(schedule, forward_s=(f, f), backward_s=(b, b))
    coding = ((Coding(encode_s=encode, decode_s=decode),),)
    trace = simulate(replace(job, coding=coding))
    assert seconds(trace) == pytest.approx(phase_s(f) + phase_s(b))
    # The rank waits for what it decodes: its computes do not go on meanwhile.
    receives = [span for span in trace.spans if span.lane is Lane.RECEIVE]
    assert all(span.end_s - span.start_s >= decode * (1 - 1e-9) for span in receives)


@settings(deadline=None)
@given(st.integers(1, 6), SECONDS, SECONDS, SECONDS)
def test_a_message_that_blocks_is_longer_by_its_coding(
    m: int, f: float, encode: float, decode: float
):
    """Of two stages: with more, ranks that are free at the same time choose by their order."""
    compute = generate(ScheduleKind.ONE_F_ONE_B, num_stages=2, num_microbatches=m)
    schedule = lower(compute, tied=False, num_replicas=1)
    job = pipeline_job(schedule, forward_s=(f, f), backward_s=(f, f), hop_s=1.0)
    coding = ((Coding(encode_s=encode, decode_s=decode),),)
    taken = seconds(simulate(replace(job, blocking=True, coding=coding)))
    assert taken == pytest.approx((m + 1) * 2 * f + 2 * m * (1.0 + encode + decode))


def test_each_boundary_has_its_own_coding():
    compute = generate(ScheduleKind.GPIPE, num_stages=3, num_microbatches=1)
    schedule = lower(compute, tied=False, num_replicas=1)
    job = pipeline_job(schedule, forward_s=(1.0,) * 3, backward_s=(1.0,) * 3)
    coding = ((Coding(), Coding(encode_s=5.0, decode_s=2.0)),)
    assert seconds(simulate(replace(job, coding=coding))) == pytest.approx(6.0 + 2 * 7.0)


@pytest.mark.parametrize(("kind", "factor"), [("hierarchical", 1.0), ("ring", 0.0)])
def test_far_gradients_are_encoded_and_decoded(kind: str, factor: float):
    """Two ranks exchange both halves: each is encoded, sent and decoded, one after the other."""
    coding = Coding(encode_s=3.0, decode_s=2.0)  # for each byte
    collective = all_reduce_transfers(AllReduceKind(kind), (0, 1), num_bytes=8.0, far_coding=coding)
    compute = generate(ScheduleKind.GPIPE, num_stages=1, num_microbatches=1)
    schedule = lower(compute, tied=False, num_replicas=2)
    trace = simulate(collective_job(cluster(2), collective, schedule=schedule))
    begin_s = max(span.end_s for span in trace.spans if span.name == Op.BACKWARD.value)
    assert seconds(trace) - begin_s == pytest.approx(8.0 + factor * 8.0 * (3.0 + 2.0))
