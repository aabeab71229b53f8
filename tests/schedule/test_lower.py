"""Lowering: messages beside their computes, and the end of each program."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Instruction,
    Op,
    Program,
    Schedule,
    backward,
    backward_input,
    backward_weight,
    check,
    describe,
    forward,
    forward_only,
    gather,
    gpipe,
    lower,
    receive,
    send,
)
from tests.schedule.strategies import compute_schedules, lowered_schedules

END_OPS = (Op.REDUCE, Op.UPDATE)


def ends(schedule: Schedule) -> list[list[str]]:
    return [[describe(each) for each in program if each.op in END_OPS] for program in schedule]


@settings(deadline=None)
@given(compute=compute_schedules(), tied=st.booleans(), num_replicas=st.integers(1, 3))
def test_the_computes_and_their_order_stay(compute: Schedule, tied: bool, num_replicas: int):
    lowered = lower(compute, tied=tied, num_replicas=num_replicas)
    kept = tuple(tuple(each for each in program if each.is_compute) for program in lowered)
    assert kept == compute


@settings(deadline=None)
@given(schedule=lowered_schedules())
def test_every_send_meets_one_receive(schedule: Schedule):
    instructions = [each for program in schedule for each in program]
    sent = [(i.stage, i.peer, i.microbatch) for i in instructions if i.op is Op.SEND]
    received = [(i.peer, i.stage, i.microbatch) for i in instructions if i.op is Op.RECEIVE]
    assert len(set(sent)) == len(sent)
    assert sorted(sent) == sorted(received)


@settings(deadline=None)
@given(compute=compute_schedules(), num_replicas=st.integers(1, 3))
def test_replicas_with_a_sharded_optimizer_gather_after_each_update(
    compute: Schedule, num_replicas: int
):
    whole, sharded = (
        lower(compute, tied=False, num_replicas=num_replicas, sharded=each)
        for each in (False, True)
    )
    check(sharded)
    without = tuple(tuple(i for i in program if i.op is not Op.GATHER) for program in sharded)
    assert without == whole
    for program in sharded if num_replicas > 1 else ():
        for position, each in enumerate(program):
            follows = program[position + 1] if each.op is Op.UPDATE else None
            assert follows in (None, gather(each.stage))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda program: (*program[:-2], program[-1], program[-2]), "precedes `update`"),
        (lambda program: program[:-1], "lacks `gather`"),
        (lambda program: (*program, program[-1]), "`gather` occurs again"),
    ],
)
def test_a_gather_out_of_place_is_refused(change: Callable[[Program], Program], fault: str):
    first, second = lower(
        gpipe(num_stages=2, num_microbatches=1), tied=False, num_replicas=2, sharded=True
    )
    with pytest.raises(PlanError, match=fault):
        check((first, change(second)))


def test_messages_stand_beside_their_computes():
    middle = lower(gpipe(num_stages=3, num_microbatches=1), tied=False, num_replicas=1)[1]
    computing: list[Instruction] = [each for each in middle if each.op not in END_OPS]
    assert computing == [
        receive(1, 0, 0),
        forward(1, 0),
        send(1, 2, 0),
        receive(1, 2, 0),
        backward(1, 0),
        send(1, 0, 0),
    ]


@pytest.mark.parametrize(
    ("num_stages", "tied", "num_replicas", "expected"),
    [
        (1, False, 1, [[]]),
        (1, True, 1, [[]]),
        (1, True, 3, [["stage"]]),
        (2, True, 1, [["tied"], ["tied"]]),
        (3, False, 2, [["stage"], ["stage"], ["stage"]]),
        (3, True, 1, [["tied"], [], ["tied"]]),
        (3, True, 2, [["stage", "tied"], ["stage"], ["stage", "tied"]]),
    ],
)
def test_gradients_are_reduced_where_they_are_shared(
    num_stages: int, tied: bool, num_replicas: int, expected: list[list[str]]
):
    compute = gpipe(num_stages=num_stages, num_microbatches=2)
    assert ends(lower(compute, tied=tied, num_replicas=num_replicas)) == [
        [*(f"reduce {bucket}" for bucket in buckets), "reduce scalars", "update"]
        for buckets in expected
    ]


def listing(schedule: Schedule, rank: int) -> list[str]:
    return [f"{each.stage}: {describe(each)}" for each in schedule[rank]]


def test_a_stage_is_summed_behind_its_last_weight_gradient():
    compute = (
        (
            forward(0, 0),
            forward(1, 0),
            backward_input(1, 0),
            backward_input(0, 0),
            backward_weight(1, 0),
            backward_weight(0, 0),
        ),
    )
    schedule = lower(compute, tied=True, num_replicas=2)
    assert listing(schedule, 0)[4:] == [
        "1: backward-weight 0",
        "1: reduce stage",
        "0: backward-weight 0",
        "0: reduce stage",
        "0: reduce tied",
        "0: reduce scalars",
        "0: update",
        "1: update",
    ]


def test_chunks_are_summed_in_the_middle_and_edges_meet_at_the_end():
    compute = (
        (forward(0, 0), forward(2, 0), backward(2, 0), backward(0, 0)),
        (forward(1, 0), forward(3, 0), backward(3, 0), backward(1, 0)),
    )
    schedule = lower(compute, tied=True, num_replicas=2)
    check(schedule)
    assert listing(schedule, 1)[3:] == [
        "3: receive 0 from stage 2",
        "3: forward 0",
        "3: backward 0",
        "3: send 0 to stage 2",
        "3: reduce stage",
        "1: receive 0 from stage 2",
        "1: backward 0",
        "1: send 0 to stage 0",
        "1: reduce stage",
        "3: reduce tied",
        "1: reduce scalars",
        "1: update",
        "3: update",
    ]


def test_an_evaluation_ends_with_its_scalars():
    compute = forward_only(num_stages=3, num_microbatches=2)
    assert ends(lower(compute, tied=True, num_replicas=2)) == [["reduce scalars"]] * 3


def test_lowering_twice_is_refused():
    once = lower(gpipe(num_stages=2, num_microbatches=1), tied=False, num_replicas=1)
    words = "stage 0 has `send 0 to stage 1` at position 1 of `compute`"
    with pytest.raises(PlanError, match=words):
        lower(once, tied=False, num_replicas=1)


def test_a_model_without_replicas_is_refused():
    with pytest.raises(PlanError, match=r"`num_replicas` .0. must be at least 1"):
        lower(gpipe(num_stages=1, num_microbatches=1), tied=False, num_replicas=0)
