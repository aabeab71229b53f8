"""The ideal timetable, against closed forms and its own laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Op,
    Schedule,
    backward,
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


@given(compute=compute_schedules(), data=st.data())
def test_every_compute_starts_as_soon_as_it_can(compute: Schedule, data: st.DataObject):
    num_stages = len(compute)
    durations = st.lists(SECONDS, min_size=num_stages, max_size=num_stages).map(tuple)
    seconds = {Op.FORWARD: data.draw(durations), Op.BACKWARD: data.draw(durations)}
    times = timetable(compute, forward_s=seconds[Op.FORWARD], backward_s=seconds[Op.BACKWARD])
    ends = {each.instruction: each.end_s for program in times.programs for each in program}
    for stage, (program, timed) in enumerate(zip(compute, times.programs, strict=True)):
        assert tuple(each.instruction for each in timed) == program
        previous_s = 0.0
        for each in timed:
            op, microbatch = each.instruction.op, each.instruction.microbatch
            assert microbatch is not None
            before = (
                forward(stage - 1, microbatch) if op is Op.FORWARD else forward(stage, microbatch)
            )
            behind = backward(stage + 1, microbatch)
            arrivals = [ends.get(before, 0.0), ends.get(behind, 0.0) if op is Op.BACKWARD else 0.0]
            assert each.start_s == max(previous_s, *arrivals)
            assert each.end_s == each.start_s + seconds[op][stage]
            previous_s = each.end_s
    assert 0.0 <= times.bubble_fraction + 1e-12 < 1.0


def test_communication_takes_no_time():
    compute = gpipe(num_stages=3, num_microbatches=4)
    seconds = {"forward_s": (1.0, 2.0, 3.0), "backward_s": (3.0, 2.0, 1.0)}
    lowered = lower(compute, tied=True, num_replicas=2)
    assert timetable(lowered, **seconds) == timetable(compute, **seconds)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "words"),
    [
        ((1.0,), (1.0, 1.0), "`forward_s` has 1 for 2 stages; give one to each"),
        ((1.0, 1.0), (1.0, 1.0, 1.0), "`backward_s` has 3 for 2 stages; give one to each"),
        ((1.0, 0.0), (1.0, 1.0), r"`forward_s` is \(1.0, 0.0\); give finite seconds above zero"),
        ((1.0, 1.0), (1.0, float("nan")), "`backward_s` is .1.0, nan.; give finite seconds"),
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
    with pytest.raises(PlanError, match="stage 0, position 0, `backward 0` waits for ever"):
        timetable(((backward(0, 0), forward(0, 0)),), forward_s=(1.0,), backward_s=(1.0,))


def test_a_timetable_of_nothing_is_refused():
    with pytest.raises(PlanError, match="`num_stages` is 0"):
        timetable((), forward_s=(), backward_s=())
