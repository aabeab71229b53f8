"""The account of a step: every second is spent once, and waits name whom they were for."""

import pytest
from hypothesis import given

from jaxpipe.trace import (
    Lane,
    Span,
    Spent,
    StepAccount,
    Trace,
    Truth,
    account,
    mean_account,
    mean_spent_s,
    summarise,
)
from tests.trace.strategies import span, traces


def account_of(*spans: Span, num_ranks: int = 2) -> StepAccount:
    names = tuple(map(str, range(num_ranks)))
    return account(Trace(truth=Truth.MEASURED, rank_names=names, spans=spans))[0]


def spent(step: StepAccount, rank: int) -> dict[Spent, float]:
    return {kind: seconds for kind, seconds in step.ranks[rank].spent_s.items() if seconds}


@given(traces())
def test_what_every_rank_spent_adds_up_to_the_step(trace: Trace):
    for step in account(trace):
        for rank in step.ranks:
            assert min(rank.spent_s.values()) >= 0
            assert sum(rank.spent_s.values()) == pytest.approx(step.seconds)
            waited_s = sum(rank.waited_s.values())
            assert waited_s <= rank.spent_s[Spent.WAITING] * (1 + 1e-9) + 1e-9
        assert sum(mean_spent_s(step).values()) == pytest.approx(step.seconds)


@given(traces())
def test_compute_is_what_the_summary_says(trace: Trace):
    for step, summary in zip(account(trace), summarise(trace), strict=True):
        computed = [rank.spent_s[Spent.COMPUTE] for rank in step.ranks]
        assert computed == pytest.approx([rank.compute_s for rank in summary.ranks])


@given(traces())
def test_the_mean_of_a_step_with_itself_is_that_step(trace: Trace):
    for step in account(trace):
        mean = mean_account([step, step])
        assert mean.seconds == pytest.approx(step.seconds)
        for rank, same in zip(step.ranks, mean.ranks, strict=True):
            assert dict(same.spent_s) == pytest.approx(dict(rank.spent_s))


def test_a_wait_is_for_the_sender_until_it_sends_and_then_for_the_network():
    step = account_of(
        span(Lane.COMPUTE, 0.0, 3.0),
        span(Lane.SEND, 3.0, 5.0, peer=1, microbatch=0),
        span(Lane.RECEIVE, 1.0, 5.0, rank=1, peer=0, microbatch=0),
    )
    assert spent(step, 1) == {Spent.IDLE: 1.0, Spent.WAITING: 2.0, Spent.ACTIVATIONS: 2.0}
    assert step.ranks[1].waited_s == {0: 2.0}
    assert spent(step, 0) == {Spent.COMPUTE: 3.0, Spent.IDLE: 2.0}


def test_what_is_between_two_instructions_is_the_hosts():
    step = account_of(
        span(Lane.COMPUTE, 1.0, 2.0, microbatch=0),
        span(Lane.COMPUTE, 2.5, 4.0, microbatch=1),
        span(Lane.UPDATE, 4.5, 5.0),
        span(Lane.UPDATE, 0.0, 7.0, rank=1),
    )
    assert spent(step, 0) == {
        Spent.COMPUTE: 2.5,
        Spent.UPDATE: 0.5,
        Spent.HOST: 1.0,
        Spent.IDLE: 3.0,
    }


def test_a_message_that_is_there_already_costs_its_taking_alone():
    step = account_of(
        span(Lane.SEND, 0.0, 1.0, peer=1, microbatch=0),
        span(Lane.RECEIVE, 2.0, 2.5, rank=1, peer=0, microbatch=0),
    )
    assert spent(step, 1) == {Spent.IDLE: 2.0, Spent.ACTIVATIONS: 0.5}


def test_a_message_whose_send_is_unknown_is_waited_for():
    step = account_of(span(Lane.RECEIVE, 0.0, 1.0, rank=1, peer=0, microbatch=0))
    assert spent(step, 1) == {Spent.WAITING: 1.0}
    assert step.ranks[1].waited_s == {0: 1.0}


def test_a_sum_is_waited_for_until_the_last_has_joined():
    step = account_of(
        span(Lane.REDUCE, 0.0, 4.0, name="reduce scalars"),
        span(Lane.REDUCE, 3.0, 4.0, rank=1, name="reduce scalars"),
    )
    assert spent(step, 0) == {Spent.WAITING: 3.0, Spent.GRADIENTS: 1.0}
    assert step.ranks[0].waited_s == {1: 3.0}
    assert spent(step, 1) == {Spent.IDLE: 3.0, Spent.GRADIENTS: 1.0}


def test_sums_of_different_stages_do_not_wait_for_each_other():
    step = account_of(  # each on its own stage, which is its rank's number
        span(Lane.REDUCE, 0.0, 4.0, name="reduce stage"),
        span(Lane.REDUCE, 3.0, 4.0, rank=1, name="reduce stage"),
    )
    assert spent(step, 0) == {Spent.GRADIENTS: 4.0}


def test_what_compute_hides_costs_nothing():
    step = account_of(
        span(Lane.COMPUTE, 0.0, 4.0),
        span(Lane.REDUCE, 1.0, 5.0, name="reduce stage"),
        span(Lane.UPDATE, 5.0, 6.0),
        num_ranks=1,
    )
    assert spent(step, 0) == {Spent.COMPUTE: 4.0, Spent.GRADIENTS: 1.0, Spent.UPDATE: 1.0}


def test_a_trace_of_nothing_has_no_account():
    assert account(Trace(truth=Truth.MEASURED, rank_names=("a",), spans=())) == ()
