"""Gradient all-reduces overlap with computation, and the trace has their true durations."""

import gc
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.comm import AsyncAllReduce, Transport, WireFormat, run_ranks
from jaxpipe.plan import Plan
from jaxpipe.runtime.step.gradient_sync import GradientSync
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.schedule import Bucket, ScheduleKind, reduce
from jaxpipe.trace import Lane, Span
from tests.runtime.pipelined import make_plan

TIMEOUT_S = 30.0


def sync_of(
    plan: Plan, transport: Transport, reducer: AsyncAllReduce, recorder: SpanRecorder
) -> GradientSync:
    """Return the all-reduces of a step of a rank."""
    return GradientSync(
        plan=plan,
        rank=transport.rank,
        reducer=reducer,
        wire=WireFormat(),
        recorder=recorder,
        timeout_s=TIMEOUT_S,
    )


def test_a_sum_keeps_nobody_waiting():
    """Rank 1 begins only when rank 0 has gone on: were the sum awaited, it would never end."""
    plan = make_plan(
        schedule=ScheduleKind.GPIPE, cut=(5,), num_replicas=2, num_microbatches=1, tied=False
    )

    def work(transport: Transport) -> tuple[list[np.ndarray], tuple[Span, ...]]:
        recorder = SpanRecorder(rank=transport.rank, clock=time.perf_counter, keep=lambda _: True)
        worker = AsyncAllReduce(transport)
        gradient_sync = sync_of(plan, transport, worker, recorder)
        go_on = jax.ShapeDtypeStruct((1,), jnp.float32)
        if transport.rank == 1:
            transport.receive(go_on, source=0, tag=0).wait(timeout_s=TIMEOUT_S)
        first, second = reduce(0, Bucket.STAGE), reduce(0, Bucket.TIED)
        gradient_sync.start(first, jnp.arange(3.0) + transport.rank)
        if transport.rank == 0:
            transport.send(jnp.zeros(1), to=1, tag=0).wait(timeout_s=TIMEOUT_S)
        gradient_sync.start(second, jnp.ones(2))
        done = dict(gradient_sync.wait(lambda _: True))
        worker.close(timeout_s=TIMEOUT_S)
        assert list(done) == [first, second]
        return [np.asarray(total) for total in done.values()], recorder.kept(clock_offset_s=0.0)

    for totals, spans in run_ranks(2, work):
        np.testing.assert_array_equal(totals[0], [1.0, 3.0, 5.0])
        np.testing.assert_array_equal(totals[1], [2.0, 2.0])
        assert [(s.lane, s.name, s.num_bytes) for s in spans] == [
            (Lane.REDUCE, "reduce stage", 12),
            (Lane.REDUCE, "reduce tied", 8),
        ]
        assert 0 < spans[0].start_s <= spans[1].start_s
        assert all(span.start_s < span.end_s for span in spans)


def test_a_sum_that_ends_before_an_earlier_one_has_its_own_span():
    """Rank 1 begins the second sum alone until it is over."""
    plan = make_plan(
        schedule=ScheduleKind.GPIPE, cut=(5,), num_replicas=2, num_microbatches=1, tied=False
    )

    def work(transport: Transport) -> tuple[Span, ...]:
        recorder = SpanRecorder(rank=transport.rank, clock=time.perf_counter, keep=lambda _: True)
        worker = AsyncAllReduce(transport)
        gradient_sync = sync_of(plan, transport, worker, recorder)
        stage, shared = reduce(0, Bucket.STAGE), reduce(0, Bucket.TIED)
        if transport.rank == 0:
            gradient_sync.start(stage, jnp.arange(3.0))
        gradient_sync.start(shared, jnp.ones(2))
        gradient_sync.pending[-1].handle.wait(timeout_s=TIMEOUT_S)
        if transport.rank == 1:
            gradient_sync.start(stage, jnp.arange(3.0))
        list(gradient_sync.wait(lambda _: True))
        worker.close(timeout_s=TIMEOUT_S)
        return recorder.kept(clock_offset_s=0.0)

    for spans in run_ranks(2, work):
        of = {span.name: span for span in spans}
        assert all(span.start_s < span.end_s for span in spans)
        assert of["reduce tied"].end_s < of["reduce stage"].end_s


def test_a_reduced_array_is_released_with_its_last_reference():
    """Without the garbage collector: each step would otherwise keep its buckets for some steps."""
    plan = make_plan(
        schedule=ScheduleKind.GPIPE, cut=(5,), num_replicas=1, num_microbatches=1, tied=False
    )

    def work(transport: Transport) -> bool:
        recorder = SpanRecorder(rank=transport.rank, clock=time.perf_counter, keep=lambda _: True)
        reducer = AsyncAllReduce(transport)
        gradient_sync = sync_of(plan, transport, reducer, recorder)
        gradient_sync.start(reduce(0, Bucket.STAGE), np.ones(3))
        future = weakref.ref(gradient_sync.pending[0].handle.future)
        assert [total.sum() for _, total in gradient_sync.wait(lambda _: True)] == [3.0]
        reducer.close(timeout_s=TIMEOUT_S)
        return future() is None

    gc.disable()
    try:
        assert run_ranks(1, work) == [True]
    finally:
        gc.enable()
