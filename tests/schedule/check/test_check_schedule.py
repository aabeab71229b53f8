"""Check: accepts what is generated, refuses every mutation that cannot run."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    backward,
    backward_input,
    backward_weight,
    check,
    forward,
    gpipe,
    lower,
    one_f_one_b,
    receive,
    reduce,
    send,
    update,
)
from tests.oracles.schedule_laws import is_runnable
from tests.schedule.strategies import lowered_schedules

SCALARS = reduce(0, Bucket.SCALARS)


def with_program(schedule: Schedule, stage: int, program: Program) -> Schedule:
    return (*schedule[:stage], program, *schedule[stage + 1 :])


def is_refused(schedule: Schedule) -> bool:
    try:
        check(schedule)
    except PlanError:
        return True
    return False


@st.composite
def places(draw: st.DrawFn) -> tuple[Schedule, int, int]:
    schedule = draw(lowered_schedules(sizes=st.integers(1, 4)))
    stage = draw(st.integers(0, len(schedule) - 1))
    return schedule, stage, draw(st.integers(0, len(schedule[stage]) - 1))


@settings(deadline=None)
@given(schedule=lowered_schedules())
def test_what_is_generated_can_run(schedule: Schedule):
    check(schedule)
    assert is_runnable(schedule)


@settings(deadline=None)
@given(place=places())
def test_a_dropped_instruction_is_missed(place: tuple[Schedule, int, int]):
    schedule, stage, position = place
    program = schedule[stage]
    # One forward less on the only stage of an evaluation is a shorter evaluation.
    assume(len(schedule) > 1 or any(each.op is Op.BACKWARD for each in program))
    assert is_refused(with_program(schedule, stage, program[:position] + program[position + 1 :]))


@settings(deadline=None)
@given(place=places(), data=st.data())
def test_a_duplicate_is_noticed(place: tuple[Schedule, int, int], data: st.DataObject):
    schedule, stage, position = place
    program = schedule[stage]
    again = data.draw(st.integers(0, len(program)))
    longer = (*program[:again], program[position], *program[again:])
    assert is_refused(with_program(schedule, stage, longer))


@settings(deadline=None)
@given(place=places(), data=st.data())
def test_a_swap_is_refused_exactly_if_it_cannot_run(
    place: tuple[Schedule, int, int], data: st.DataObject
):
    schedule, stage, position = place
    program = list(schedule[stage])
    other = data.draw(st.integers(0, len(program) - 1))
    program[position], program[other] = program[other], program[position]
    swapped = with_program(schedule, stage, tuple(program))
    assert is_refused(swapped) == (not is_runnable(swapped))


@settings(deadline=None)
@given(place=places(), stage_of_it=st.integers(-1, 4))
def test_an_instruction_of_another_stage_is_refused(
    place: tuple[Schedule, int, int], stage_of_it: int
):
    schedule, stage, position = place
    program = list(schedule[stage])
    assume(stage_of_it != program[position].stage)
    program[position] = replace(program[position], stage=stage_of_it)
    assert is_refused(with_program(schedule, stage, tuple(program)))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ((), "`num_stages` .0."),
        (((SCALARS,),), "`num_microbatches` .0."),
        (
            ((forward(0, 0), forward(0, 0), SCALARS),),
            "stage 0, position 1, `forward 0` occurs again; remove it",
        ),
        (
            ((forward(0, 0), forward(1, 0), SCALARS), ()),
            "stage 0, position 1, `forward 0` does not belong to this one; remove it",
        ),
        (
            ((forward(0, 0), Instruction(op=Op.FORWARD, stage=0), SCALARS),),
            "stage 0, position 1, `forward` does not belong to this one",
        ),
        (
            ((forward(0, 0), reduce(0, Bucket.STAGE), SCALARS),),
            "stage 0, position 1, `reduce stage` does not belong to this one",
        ),
        (((forward(0, 0),),), "stage 0 lacks `reduce scalars`"),
        (((forward(0, 0), backward(0, 0), SCALARS),), "stage 0 lacks `update`"),
        (
            (
                (forward(0, 0), SCALARS),
                (receive(1, 0, 0), forward(1, 0), reduce(1, Bucket.SCALARS)),
            ),
            "every receive has its send: stage 1, position 0, `receive 0 from stage 0` has "
            "none; add `send 0 to stage 1` to stage 0",
        ),
        (
            ((forward(0, 0), SCALARS), (forward(1, 0), reduce(1, Bucket.SCALARS))),
            "stage 0 lacks `send 0 to stage 1`",
        ),
        (
            ((forward(0, 0), SCALARS, backward(0, 0), update(0)),),
            "stage 0, position 1, `reduce scalars` precedes `backward 0`; move it after that",
        ),
        (
            ((forward(0, 0), backward(0, 0), update(0), SCALARS),),
            "stage 0, position 2, `update` precedes `reduce scalars`; move it after that",
        ),
    ],
)
def test_the_first_fault_is_named(schedule: Schedule, words: str):
    with pytest.raises(PlanError, match=words):
        check(schedule)


def test_both_a_whole_and_a_split_backward_are_refused():
    program = (forward(0, 0), backward(0, 0), backward_input(0, 0), backward_weight(0, 0))
    with pytest.raises(
        PlanError, match="position 2, `backward-input 0` does not belong to this one"
    ):
        check(((*program, SCALARS, update(0)),))


@pytest.mark.parametrize(
    ("halves", "words"),
    [
        ((backward_input(0, 0),), "stage 0 lacks `backward-weight 0`"),
        ((backward_weight(0, 0),), "stage 0 lacks `backward-input 0`"),
        (
            (backward_weight(0, 0), backward_input(0, 0)),
            "position 1, `backward-weight 0` precedes `backward-input 0`; move it after that",
        ),
    ],
)
def test_the_halves_of_a_backward_follow_each_other(halves: Program, words: str):
    with pytest.raises(PlanError, match=words):
        check(((forward(0, 0), *halves, SCALARS, update(0)),))


def test_neighbours_on_one_rank_have_no_message():
    program = (forward(0, 0), forward(1, 0), SCALARS)
    check((program,))
    with pytest.raises(
        PlanError, match="position 1, `send 0 to stage 1` does not belong to this one"
    ):
        check(((program[0], send(0, 1, 0), *program[1:]),))
    with pytest.raises(PlanError, match="stage 1, position 0, `forward 0` precedes `forward 0"):
        check(((program[1], program[0], SCALARS),))


def test_a_reduction_on_which_the_stages_disagree_is_named():
    schedule = lower(gpipe(num_stages=3, num_microbatches=1), tied=True, num_replicas=2)
    without = tuple(each for each in schedule[2] if each.bucket is not Bucket.TIED)
    with pytest.raises(PlanError, match="stage 2 lacks `reduce tied`"):
        check(with_program(schedule, 2, without))


def test_a_deadlock_of_well_ordered_programs_is_named():
    first, second = lower(one_f_one_b(num_stages=2, num_microbatches=2), tied=False, num_replicas=1)
    # The first stage now wants the gradient of 0 before it sends the activation of 0.
    late = (*(each for each in first if each != send(0, 1, 0)), send(0, 1, 0))
    with pytest.raises(PlanError, match="stage 0, position 3, `receive 0 from stage 1` never runs"):
        check((late, second))
