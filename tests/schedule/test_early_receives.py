"""Receives that are posted ahead: each once, before it is needed, as in PyTorch."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Schedule,
    backward,
    forward,
    gpipe,
    interleaved,
    lower,
    one_f_one_b,
    zb_h1,
)
from jaxpipe.schedule.dataflow import message_ends
from jaxpipe.schedule.early_receives import early_receives
from jaxpipe.schedule.virtual_stages import count_stages

SCHEDULES = st.builds(
    lambda make, p, m: make(num_stages=p, num_microbatches=m),
    st.sampled_from((gpipe, one_f_one_b, zb_h1)),
    st.integers(1, 4),
    st.integers(1, 6),
) | st.integers(1, 3).map(lambda n: interleaved(num_stages=4, num_chunks=2, num_microbatches=2 * n))


@given(schedule=SCHEDULES)
def test_every_receive_is_posted_once_before_its_compute(schedule: Schedule):
    num_ranks, num_stages = len(schedule), count_stages(schedule)
    for program, posts in zip(schedule, early_receives(schedule), strict=True):
        posted = Counter(
            {
                (one.stage, one.peer, one.microbatch): count
                for count, receives in posts.items()
                for one in receives
            }
        )
        needed: dict[tuple[int, int, int | None], int] = {}
        for position, compute in enumerate(program):
            source, _ = message_ends(compute, num_ranks=num_ranks, num_stages=num_stages)
            if source is not None:
                needed[compute.stage, source, compute.microbatch] = position
        assert set(posted) == set(needed)
        assert sum(map(len, posts.values())) == len(needed)
        assert all(posted[message] <= needed[message] for message in needed)


def test_a_lowered_schedule_posts_the_same():
    schedule = one_f_one_b(num_stages=3, num_microbatches=4)
    assert early_receives(lower(schedule, tied=True, num_replicas=1)) == early_receives(schedule)


def test_the_order_is_that_of_torch():
    """As `_add_send_recv` of PyTorch 2.14 lowers 1F1B of two stages and three microbatches."""
    first, last = early_receives(one_f_one_b(num_stages=2, num_microbatches=3))
    microbatches = [
        {count: [one.microbatch for one in receives] for count, receives in posts.items()}
        for posts in (first, last)
    ]
    assert microbatches == [{2: [0], 4: [1], 5: [2]}, {0: [0], 1: [1], 3: [2]}]


def test_a_deadlock_is_refused():
    with pytest.raises(PlanError, match="`schedule` deadlocks"):
        early_receives(((backward(0, 0), forward(0, 0)), (forward(1, 0), backward(1, 0))))
