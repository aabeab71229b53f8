"""The ideal timetable, against closed forms and its own laws."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Instruction,
    Op,
    Schedule,
    backward,
    backward_input,
    count_stages,
    forward,
    forward_only,
    gpipe,
    lower,
    one_f_one_b,
    timetable,
)
from tests.schedule.strategies import compute_schedules

SECONDS = st.floats(0.01, 100.0)


def test_one_stage_has_no_bubble():
    times = timetable(
        one_f_one_b(num_stages=1, num_microbatches=3), forward_s=(0.5,), backward_s=(1.5,)
    )
    assert times.makespan_s == pytest.approx(6.0)
    assert times.bubble_fraction == pytest.approx(0.0)


def test_the_slowest_stage_sets_the_pace():
    times = timetable(
        forward_only(num_stages=3, num_microbatches=5),
        forward_s=(1.0, 4.0, 2.0),
        backward_s=(1.0, 1.0, 1.0),
    )
    assert times.makespan_s == pytest.approx(1.0 + 5 * 4.0 + 2.0)


@settings(deadline=None)
@given(compute=compute_schedules(), data=st.data(), message_s=st.sampled_from((0.0, 3.0)))
def test_every_compute_starts_as_soon_as_it_can(
    compute: Schedule, data: st.DataObject, message_s: float
):
    num_ranks, num_stages = len(compute), count_stages(compute)
    durations = st.lists(SECONDS, min_size=num_stages, max_size=num_stages).map(tuple)
    forward_s, input_s, weight_s = (data.draw(durations) for _ in range(3))
    whole_s = tuple(a + b for a, b in zip(input_s, weight_s, strict=True))
    seconds = {
        Op.FORWARD: forward_s,
        Op.BACKWARD: whole_s,
        Op.BACKWARD_INPUT: tuple(a - b for a, b in zip(whole_s, weight_s, strict=True)),
        Op.BACKWARD_WEIGHT: weight_s,
    }
    times = timetable(
        compute,
        forward_s=forward_s,
        backward_s=whole_s,
        backward_weight_s=weight_s,
        message_s=message_s,
    )
    assert -1e-9 <= times.bubble_fraction < 1.0
    ends = {each.instruction: each.end_s for program in times.programs for each in program}
    for program, timed in zip(compute, times.programs, strict=True):
        assert tuple(each.instruction for each in timed) == program
        previous_s = 0.0
        for each in timed:
            op, stage = each.instruction.op, each.instruction.stage
            arrivals = [
                ends[need] + (0.0 if need.stage % num_ranks == stage % num_ranks else message_s)
                for need in needs(each.instruction)
                if need in ends
            ]
            assert each.start_s == max((previous_s, *arrivals))
            assert each.end_s == each.start_s + seconds[op][stage]
            previous_s = each.end_s
    assert times.bubble_fraction < 1.0


def needs(compute: Instruction) -> tuple[Instruction, ...]:
    stage, microbatch = compute.stage, compute.microbatch
    assert microbatch is not None
    match compute.op:
        case Op.FORWARD:
            return (forward(stage - 1, microbatch),)
        case Op.BACKWARD_WEIGHT:
            return (backward_input(stage, microbatch),)
        case _:
            behind = (backward(stage + 1, microbatch), backward_input(stage + 1, microbatch))
            return (forward(stage, microbatch), *behind)


def test_a_message_delays_what_comes_from_another_rank_alone():
    program = (forward(0, 0), forward(1, 0), forward(2, 0), forward(3, 0))
    seconds = {"forward_s": (1.0,) * 4, "backward_s": (1.0,) * 4, "message_s": 10.0}
    apart = ((program[0], program[2]), (program[1], program[3]))
    assert timetable((program,), **seconds).makespan_s == 4.0
    assert timetable(apart, **seconds).makespan_s == 34.0


def test_communication_takes_no_time():
    compute = gpipe(num_stages=3, num_microbatches=4)
    times = partial(timetable, forward_s=(1.0, 2.0, 3.0), backward_s=(3.0, 2.0, 1.0))
    assert times(lower(compute, tied=True, num_replicas=2)) == times(compute)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"backward_weight_s": (2.0,)},
            r"`backward_weight_s` \(2.0,\) must be below `backward_s` \(2.0,\)",
        ),
        ({"backward_weight_s": (1.0, 1.0)}, "`backward_weight_s` has 2 durations for 1 stages"),
        ({"message_s": -1.0}, "`message_s` .-1.0. must be finite seconds"),
    ],
)
def test_impossible_parts_and_messages_are_refused(more: dict[str, Any], words: str):
    schedule = gpipe(num_stages=1, num_microbatches=1)
    with pytest.raises(PlanError, match=words):
        timetable(schedule, forward_s=(1.0,), backward_s=(2.0,), **more)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "words"),
    [
        ((1.0,), (1.0, 1.0), "`forward_s` has 1 durations for 2 stages; give one for each"),
        (
            (1.0, 1.0),
            (1.0, 1.0, 1.0),
            "`backward_s` has 3 durations for 2 stages; give one for each",
        ),
        ((1.0, 0.0), (1.0, 1.0), r"`forward_s` \(1.0, 0.0\) must be finite seconds above zero"),
        ((1.0, 1.0), (1.0, float("nan")), "`backward_s` .1.0, nan. must be finite seconds"),
    ],
)
def test_durations_are_one_positive_number_to_a_stage(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], words: str
):
    with pytest.raises(PlanError, match=words):
        timetable(
            gpipe(num_stages=2, num_microbatches=1), forward_s=forward_s, backward_s=backward_s
        )


def test_programs_that_wait_for_each_other_are_refused():
    with pytest.raises(PlanError, match="stage 0, position 0, `backward 0` never runs"):
        timetable(((backward(0, 0), forward(0, 0)),), forward_s=(1.0,), backward_s=(1.0,))


def test_a_timetable_of_nothing_is_refused():
    with pytest.raises(PlanError, match=r"`num_stages` .0."):
        timetable((), forward_s=(), backward_s=())
