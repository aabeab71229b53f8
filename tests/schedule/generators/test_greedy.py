"""Greedy schedules: legal, within memory, and no worse than the named ones."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Costs,
    Schedule,
    WeightPlacement,
    check,
    greedy,
    lower,
    peak_live,
    timetable,
    zb_h1,
    zb_h2,
)

SECONDS = st.floats(0.1, 10.0)


def equal_costs(num_stages: int, *, message_s: float = 0.0) -> Costs:
    ones = (1.0,) * num_stages
    return Costs(
        forward_s=ones,
        backward_input_s=ones,
        backward_weight_s=ones,
        message_s=(message_s,) * (num_stages - 1),
    )


def makespan_s(schedule: Schedule, *, message_s: float = 0.0) -> float:
    p = len(schedule)
    return timetable(
        schedule, forward_s=(1.0,) * p, backward_s=(2.0,) * p, message_s=message_s
    ).makespan_s


@st.composite
def all_costs(draw: st.DrawFn) -> Costs:
    num_stages = draw(st.integers(1, 5))
    durations = st.tuples(*[SECONDS] * num_stages)
    return Costs(
        forward_s=draw(durations),
        backward_input_s=draw(durations),
        backward_weight_s=draw(durations),
        message_s=draw(st.tuples(*[st.floats(0.0, 10.0)] * (num_stages - 1))),
    )


@settings(deadline=None)
@given(all_costs(), st.integers(1, 9), st.sampled_from(WeightPlacement), st.data())
def test_every_schedule_can_run_and_keeps_within_its_limits(
    costs: Costs, num_microbatches: int, weights: WeightPlacement, data: st.DataObject
):
    depths = st.tuples(*[st.integers(1, 10)] * costs.num_stages)
    warmup, max_live = data.draw(depths), data.draw(depths)
    schedule = greedy(
        costs,
        num_microbatches=num_microbatches,
        warmup=warmup,
        max_live=max_live,
        weights=weights,
    )
    check(lower(schedule, tied=True, num_replicas=2))
    assert all(len(program) == 3 * num_microbatches for program in schedule)
    peaks = peak_live(schedule)
    assert all(peak <= limit for peak, limit in zip(peaks, max_live, strict=True))


@pytest.mark.parametrize("weights", WeightPlacement)
@pytest.mark.parametrize(("p", "m"), list(product(range(1, 7), range(1, 13))))
def test_equal_stages_are_no_slower_than_by_hand(p: int, m: int, weights: WeightPlacement):
    warmups = {
        zb_h1: tuple(p - stage for stage in range(p)),
        zb_h2: tuple(2 * (p - stage) - 1 for stage in range(p)),
    }
    for generator, warmup in warmups.items():
        max_live = (warmup[0],) * p
        schedule = greedy(
            equal_costs(p), num_microbatches=m, warmup=warmup, max_live=max_live, weights=weights
        )
        by_hand = generator(num_stages=p, num_microbatches=m)
        assert makespan_s(schedule) <= makespan_s(by_hand)


def test_messages_are_hidden_in_the_memory_of_zb_h2():
    schedule = greedy(
        equal_costs(4, message_s=1.0),
        num_microbatches=32,
        warmup=(10, 7, 4, 1),
        max_live=(7,) * 4,
    )
    assert round(makespan_s(schedule, message_s=1.0) / 96, 2) == 1.06


@pytest.mark.parametrize(
    ("warmup", "max_live", "words"),
    [
        (
            (1,),
            (1, 1),
            r"`warmup` \(1,\) must have a number of at least 1 for each of 2 stages",
        ),
        ((1, 1), (1, 0), r"`max_live` \(1, 0\) must have .* 2 stages"),
    ],
)
def test_a_rank_that_may_keep_nothing_is_refused(
    warmup: tuple[int, ...], max_live: tuple[int, ...], words: str
):
    with pytest.raises(PlanError, match=words):
        greedy(equal_costs(2), num_microbatches=1, warmup=warmup, max_live=max_live)


@pytest.mark.parametrize(
    ("forward_s", "message_s", "words"),
    [
        ((1.0,), (0.0,), r"`message_s` has 1 hops, and there are 1, 2, 2 stages"),
        ((1.0, 1.0), (), r"`message_s` has 0 hops, and there are 2, 2, 2 stages"),
        ((1.0, 0.0), (0.0,), "computes must take finite seconds above zero"),
        ((1.0, 1.0), (-1.0,), r"`message_s` \(-1.0,\) must be finite seconds"),
    ],
)
def test_impossible_costs_are_refused(
    forward_s: tuple[float, ...], message_s: tuple[float, ...], words: str
):
    twos = (2.0, 2.0)
    with pytest.raises(PlanError, match=words):
        Costs(
            forward_s=forward_s,
            backward_input_s=twos,
            backward_weight_s=twos,
            message_s=message_s,
        )
