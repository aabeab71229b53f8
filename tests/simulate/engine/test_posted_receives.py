"""Messages whose rest waits for a posted receive, held against closed forms."""

from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.errors import PlanError
from jaxpipe.network import MessageCosts
from jaxpipe.schedule import lower, one_f_one_b
from jaxpipe.simulate import Phase, StepModel, simulate

LATENCY_S, BYTES_PER_S, MESSAGE_BYTES = 0.5, 1e9, 4e9
WIRE_S = MESSAGE_BYTES / BYTES_PER_S


def _step(costs: MessageCosts, *, num_microbatches: int, forward_s: float = 1.0) -> StepModel:
    schedule = lower(
        one_f_one_b(num_stages=2, num_microbatches=num_microbatches), tied=False, num_replicas=1
    )
    return StepModel(
        cluster=topo.load("homogeneous:hosts=2,delay_ms=500,bandwidth_gbps=8"),
        placement=((0, 1),),
        phases=(Phase(schedule=schedule),),
        forward_s=(forward_s,) * 2,
        backward_s=(2 * forward_s,) * 2,
        activation_bytes=MESSAGE_BYTES,
        messages=costs,
    )


def _end_s(step: StepModel) -> float:
    return max(span.end_s for span in simulate(step).spans)


def test_a_receive_that_was_posted_early_delays_nothing():
    # Forward, message, both computes of the second stage, message, backward: each rank waits.
    expected = 1.0 + (WIRE_S + LATENCY_S) + 3.0 + (WIRE_S + LATENCY_S) + 2.0
    for eager_bytes in (0.0, 1e9, 1e12):
        step = _step(MessageCosts(eager_bytes=eager_bytes), num_microbatches=1)
        assert _end_s(step) == pytest.approx(expected)


@pytest.mark.parametrize("eager_bytes", [0.0, 1e9, 3e9])
def test_the_rest_of_a_message_follows_the_request_of_its_receiver(eager_bytes: float):
    # 1F1B: the second forward is sent at once, but the last stage posts its receive only after its
    # first forward and backward, which take 30 s.
    step = _step(MessageCosts(eager_bytes=eager_bytes), num_microbatches=2, forward_s=10.0)
    posted_s = 10.0 + (WIRE_S + LATENCY_S) + 30.0
    rest_s = (MESSAGE_BYTES - eager_bytes) / BYTES_PER_S
    # The request and the rest take a latency each.
    arrives_s = posted_s + LATENCY_S + rest_s + LATENCY_S
    received = [s for s in simulate(step).spans if s.name == "receive" and s.microbatch == 1]
    assert min(s.end_s for s in received) == pytest.approx(arrives_s)


def test_a_receive_may_be_posted_computes_ahead():
    # The last stage posts its second receive after its first forward, before its backward of 20 s.
    costs = MessageCosts(eager_bytes=0.0)
    step = replace(_step(costs, num_microbatches=2, forward_s=10.0), posts_ahead=True)
    arrives_s = 10.0 + (WIRE_S + LATENCY_S) + 10.0 + LATENCY_S + WIRE_S + LATENCY_S
    sent = [s for s in simulate(step).spans if s.name == "send" and s.microbatch == 1]
    assert min(s.end_s for s in sent) == pytest.approx(arrives_s)


@pytest.mark.parametrize("num_microbatches", [1, 2, 5])
def test_posting_ahead_is_between_posting_late_and_no_limit(num_microbatches: int):
    late = _step(MessageCosts(eager_bytes=0.0), num_microbatches=num_microbatches)
    free = _step(MessageCosts(), num_microbatches=num_microbatches)
    ends_s = [_end_s(step) for step in (free, replace(late, posts_ahead=True), late)]
    assert ends_s == sorted(ends_s)
    assert _end_s(replace(free, posts_ahead=True)) == ends_s[0]


def test_replicas_post_their_receives_as_one_does():
    one = replace(_step(MessageCosts(eager_bytes=0.0), num_microbatches=3), posts_ahead=True)
    cluster = topo.load("homogeneous:hosts=4,delay_ms=500,bandwidth_gbps=8")
    both = replace(
        one,
        cluster=cluster,
        placement=((0, 1), (2, 3)),
        forward_s=one.forward_s * 2,
        backward_s=one.backward_s * 2,
    )
    assert _end_s(both) == pytest.approx(_end_s(one))


def test_the_rest_of_a_message_has_no_overhead():
    eager = _step(MessageCosts(eager_bytes=1e9, overhead_s=0.25), num_microbatches=1)
    whole = _step(MessageCosts(overhead_s=0.25), num_microbatches=1)
    assert _end_s(eager) == pytest.approx(_end_s(whole))


def test_a_limit_that_no_message_reaches_changes_nothing():
    costs = MessageCosts(overhead_s=0.1)
    with_limit = _step(replace(costs, eager_bytes=MESSAGE_BYTES), num_microbatches=4)
    assert simulate(with_limit).spans == simulate(_step(costs, num_microbatches=4)).spans


@pytest.mark.parametrize("field", ["window", "num_buffers"])
def test_eager_bytes_and_counts_of_messages_exclude_each_other(field: str):
    with pytest.raises(PlanError, match=f"`{field}` must be None with a limit of `eager_bytes`"):
        MessageCosts(eager_bytes=1.0, **{field: 1})


def test_negative_eager_bytes_are_refused():
    with pytest.raises(PlanError, match="`eager_bytes` must be 0 or more, not -1"):
        MessageCosts(eager_bytes=-1)
