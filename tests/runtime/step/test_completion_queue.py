"""Computes in flight: their order, bound and spans, the errors and the deadline of the device."""

from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import DeadlineError
from jaxpipe.runtime.step.completion_queue import CompletionQueue
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.runtime.step.stage_run import Dispatched
from jaxpipe.schedule import Instruction, Op
from jaxpipe.trace import Lane, Span

_TIMEOUT_S = 60.0


@dataclass
class _Array:
    """Stands for an array of a device that computes it when the test says so."""

    computed: Event = field(default_factory=Event)
    error: Exception | None = None

    def block_until_ready(self) -> "_Array":
        assert self.computed.wait(_TIMEOUT_S)
        if self.error is not None:
            raise self.error
        return self


class _Clock:
    """Counts its readings, so that each time is another."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def _queue(
    *, in_flight: int, timeout_s: float = _TIMEOUT_S
) -> tuple[CompletionQueue, SpanRecorder]:
    recorder = SpanRecorder(rank=0, clock=_Clock(), keep=lambda _: True)
    return CompletionQueue(recorder, in_flight=in_flight, timeout_s=timeout_s), recorder


def _forward(microbatch: int) -> Instruction:
    return Instruction(op=Op.FORWARD, stage=0, microbatch=microbatch)


def _add(queue: CompletionQueue, recorder: SpanRecorder, number: int, array: _Array) -> None:
    start_s = recorder.now()
    queue.add(Lane.COMPUTE, _forward(number), Dispatched(array), start_s=start_s)


def _spans(recorder: SpanRecorder) -> tuple[Span, ...]:
    return recorder.kept(clock_offset_s=0.0)


@pytest.mark.parametrize("in_flight", [2, 3, 5])
def test_the_host_is_ahead_by_the_bound_and_no_more(in_flight: int) -> None:
    queue, recorder = _queue(in_flight=in_flight, timeout_s=0.05)
    arrays = [_Array() for _ in range(in_flight)]
    for number, array in enumerate(arrays[:-1]):
        _add(queue, recorder, number, array)  # returns, although nothing is computed
    with pytest.raises(DeadlineError, match=r"device to complete forward 0"):
        _add(queue, recorder, in_flight - 1, arrays[-1])
    for array in arrays:
        array.computed.set()


@given(st.integers(1, 5), st.integers(1, 12))
def test_spans_are_in_order_and_do_not_overlap(in_flight: int, count: int) -> None:
    queue, recorder = _queue(in_flight=in_flight)
    for number in range(count):
        array = _Array()
        array.computed.set()
        _add(queue, recorder, number, array)
    queue.close()
    spans = _spans(recorder)
    assert [span.microbatch for span in spans] == list(range(count))
    assert all(span.start_s < span.end_s for span in spans)
    assert all(a.end_s <= b.start_s for a, b in pairwise(spans))


def test_a_span_begins_when_the_one_before_it_ends() -> None:
    queue, recorder = _queue(in_flight=3)
    first, second = _Array(), _Array()
    _add(queue, recorder, 0, first)
    _add(queue, recorder, 1, second)
    first.computed.set()
    second.computed.set()
    queue.close()
    one, two = _spans(recorder)
    assert one.start_s == 1.0  # from its call on
    assert two.start_s == one.end_s  # its call came before that


def test_an_error_of_the_device_is_raised_and_nothing_after_it_counts() -> None:
    queue, recorder = _queue(in_flight=4)
    failed, later = _Array(error=RuntimeError("out of memory")), _Array()
    _add(queue, recorder, 0, failed)
    _add(queue, recorder, 1, later)
    failed.computed.set()
    later.computed.set()
    with pytest.raises(RuntimeError, match="out of memory"):
        queue.wait()
    with pytest.raises(RuntimeError, match="out of memory"):
        queue.wait()
    assert _spans(recorder) == ()


def test_a_call_whose_results_are_overwritten_is_complete_before_they_are() -> None:
    add = jax.jit(lambda total: total + 1.0, donate_argnums=0)
    queue, recorder = _queue(in_flight=3)
    total = jnp.zeros((64, 64))
    for number in range(8):
        start_s, total = recorder.now(), add(total)
        dispatched = Dispatched(None, {"weights": total})
        queue.add(Lane.COMPUTE, _forward(number), dispatched, start_s=start_s)
    queue.close()
    assert float(total[0, 0]) == 8.0
    assert len(_spans(recorder)) == 8
