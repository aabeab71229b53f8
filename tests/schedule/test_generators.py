"""Generators: what they emit, their closed forms, and what they refuse."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Op,
    Program,
    Schedule,
    ScheduleKind,
    backward,
    eager_one_f_one_b,
    forward,
    forward_only,
    generate,
    gpipe,
    one_f_one_b,
    peak_live,
    timetable,
)
from tests.schedule.strategies import SIZES, training_schedules, warmups

SHAPES = list(product((1, 2, 3, 4, 7), (1, 2, 3, 4, 8)))


def equal_stages(schedule: Schedule) -> float:
    num_stages = len(schedule)
    times = timetable(schedule, forward_s=(1.0,) * num_stages, backward_s=(2.0,) * num_stages)
    return times.bubble_fraction


def num_forwards_before_backward(program: Program) -> int:
    return next(i for i, each in enumerate(program) if each.op is Op.BACKWARD)


@pytest.mark.parametrize("generator", [gpipe, one_f_one_b, eager_one_f_one_b])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_bubble_of_equal_stages_is_the_closed_form(
    generator: Callable[..., Schedule], num_stages: int, num_microbatches: int
):
    schedule = generator(num_stages=num_stages, num_microbatches=num_microbatches)
    bubble = (num_stages - 1) / (num_microbatches + num_stages - 1)
    assert equal_stages(schedule) == pytest.approx(bubble)


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_peaks_are_the_closed_forms(num_stages: int, num_microbatches: int):
    p, m = num_stages, num_microbatches
    assert peak_live(gpipe(num_stages=p, num_microbatches=m)) == (m,) * p
    assert peak_live(one_f_one_b(num_stages=p, num_microbatches=m)) == tuple(
        min(m, p - s) for s in range(p)
    )
    assert peak_live(eager_one_f_one_b(num_stages=p, num_microbatches=m)) == tuple(
        min(m, 2 * (p - s) - 1) for s in range(p)
    )
    assert peak_live(forward_only(num_stages=p, num_microbatches=m)) == (0,) * p


@given(schedule=training_schedules())
def test_each_microbatch_goes_once_each_way_in_order(schedule: Schedule):
    num_microbatches = len(schedule[0]) // 2
    for stage, program in enumerate(schedule):
        forwards = [each for each in program if each.op is Op.FORWARD]
        backwards = [each for each in program if each.op is Op.BACKWARD]
        assert forwards == [forward(stage, m) for m in range(num_microbatches)]
        assert backwards == [backward(stage, m) for m in range(num_microbatches)]
        assert len(program) == 2 * num_microbatches


@given(data=st.data(), num_stages=SIZES, num_microbatches=SIZES)
def test_warmup_is_the_forwards_before_the_first_backward_and_the_peak(
    data: st.DataObject, num_stages: int, num_microbatches: int
):
    warmup = data.draw(warmups(num_stages=num_stages, num_microbatches=num_microbatches))
    schedule = eager_one_f_one_b(
        num_stages=num_stages, num_microbatches=num_microbatches, warmup=warmup
    )
    assert tuple(map(num_forwards_before_backward, schedule)) == warmup
    assert peak_live(schedule) == warmup


@given(num_stages=SIZES, num_microbatches=SIZES)
def test_the_other_schedules_are_warmups(num_stages: int, num_microbatches: int):
    size = {"num_stages": num_stages, "num_microbatches": num_microbatches}
    everything = (num_microbatches,) * num_stages
    plain = tuple(min(num_microbatches, num_stages - stage) for stage in range(num_stages))
    assert eager_one_f_one_b(**size, warmup=everything) == gpipe(**size)
    assert eager_one_f_one_b(**size, warmup=plain) == one_f_one_b(**size)


@pytest.mark.parametrize("kind", ScheduleKind)
@pytest.mark.parametrize(
    ("num_stages", "num_microbatches", "field"),
    [(0, 1, "`num_stages` is 0"), (1, 0, "`num_microbatches` is 0"), (-2, 3, "is -2; make it at")],
)
def test_a_schedule_needs_stages_and_microbatches(
    kind: ScheduleKind, num_stages: int, num_microbatches: int, field: str
):
    with pytest.raises(PlanError, match=field):
        generate(kind, num_stages=num_stages, num_microbatches=num_microbatches)


@pytest.mark.parametrize(
    ("warmup", "words"),
    [
        ((2, 1), r"`warmup` \(2, 1\) has 2 numbers for 3 stages; give one to each"),
        ((2, 1, 0), r"`warmup` is \(2, 1, 0\); keep each between 1 and `num_microbatches`, 4"),
        ((5, 1, 1), r"`warmup` is \(5, 1, 1\); keep each between 1 and `num_microbatches`, 4"),
        ((1, 2, 1), r"`warmup` is \(1, 2, 1\); let it not increase"),
    ],
)
def test_an_illegal_warmup_is_refused(warmup: tuple[int, ...], words: str):
    with pytest.raises(PlanError, match=words):
        eager_one_f_one_b(num_stages=3, num_microbatches=4, warmup=warmup)


@pytest.mark.parametrize("kind", [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B])
def test_a_warmup_that_would_be_ignored_is_refused(kind: ScheduleKind):
    with pytest.raises(PlanError, match=f"`warmup` is .1, 1. and `kind` is {kind}"):
        generate(kind, num_stages=2, num_microbatches=1, warmup=(1, 1))


@pytest.mark.parametrize(
    ("name", "generator"),
    [("gpipe", gpipe), ("1f1b", one_f_one_b), ("eager-1f1b", eager_one_f_one_b)],
)
def test_kinds_name_their_generators(name: str, generator: Callable[..., Schedule]):
    made = generate(ScheduleKind(name), num_stages=3, num_microbatches=7)
    assert made == generator(num_stages=3, num_microbatches=7)
