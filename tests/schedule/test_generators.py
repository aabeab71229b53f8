"""Generators: what they emit, their closed forms, and what they refuse."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Op,
    Program,
    Schedule,
    ScheduleKind,
    count_stages,
    eager_one_f_one_b,
    forward_only,
    generate,
    gpipe,
    interleaved,
    one_f_one_b,
    peak_live,
    peak_live_of_kind,
    timetable,
    zb_h1,
    zb_h2,
)
from tests.schedule.strategies import SIZES, named_schedules, warmups, whole_schedules

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


@settings(deadline=None)
@given(schedule=st.one_of(whole_schedules(), named_schedules()))
def test_each_microbatch_goes_once_each_way_in_order(schedule: Schedule):
    num_ranks, num_stages = len(schedule), count_stages(schedule)
    num_microbatches = 1 + max(each.microbatch or 0 for each in schedule[0])
    in_order = list(range(num_microbatches))
    for stage in range(num_stages):
        program = [each for each in schedule[stage % num_ranks] if each.stage == stage]
        done = {op: [each.microbatch for each in program if each.op is op] for op in Op}
        split = done[Op.BACKWARD_INPUT] == done[Op.BACKWARD_WEIGHT] == in_order
        assert done[Op.FORWARD] == in_order
        assert split != (done[Op.BACKWARD] == in_order)
        assert len(program) == (3 if split else 2) * num_microbatches


@settings(deadline=None)
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


@settings(deadline=None)
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
    [(0, 1, "`num_stages` .0."), (1, 0, "`num_microbatches` .0."), (-2, 3, ".-2. must be at")],
)
def test_a_schedule_needs_stages_and_microbatches(
    kind: ScheduleKind, num_stages: int, num_microbatches: int, field: str
):
    with pytest.raises(PlanError, match=field):
        generate(kind, num_stages=num_stages, num_microbatches=num_microbatches)


@pytest.mark.parametrize(
    ("warmup", "words"),
    [
        ((2, 1), r"`warmup` \(2, 1\) has 2 numbers for 3 stages; give one for each"),
        ((2, 1, 0), r"`warmup` \(2, 1, 0\) must be between 1 and `num_microbatches` \(4\)"),
        ((5, 1, 1), r"`warmup` \(5, 1, 1\) must be between 1 and `num_microbatches` \(4\)"),
        ((1, 2, 1), r"`warmup` \(1, 2, 1\) must not increase"),
    ],
)
def test_an_illegal_warmup_is_refused(warmup: tuple[int, ...], words: str):
    with pytest.raises(PlanError, match=words):
        eager_one_f_one_b(num_stages=3, num_microbatches=4, warmup=warmup)


@pytest.mark.parametrize("kind", [kind for kind in ScheduleKind if not kind.facts.takes_warmup])
def test_a_warmup_that_would_be_ignored_is_refused(kind: ScheduleKind):
    with pytest.raises(
        PlanError, match=f"`warmup` must be left out for the schedule {kind}, not .1, 1."
    ):
        generate(kind, num_stages=2, num_microbatches=1, warmup=(1, 1))


@pytest.mark.parametrize(
    ("name", "generator"),
    [
        ("gpipe", gpipe),
        ("1f1b", one_f_one_b),
        ("eager-1f1b", eager_one_f_one_b),
        ("zb-h1", zb_h1),
        ("zb-h2", zb_h2),
    ],
)
def test_kinds_name_their_generators(name: str, generator: Callable[..., Schedule]):
    made = generate(ScheduleKind(name), num_stages=3, num_microbatches=7)
    assert made == generator(num_stages=3, num_microbatches=7)


def test_the_interleaved_kind_has_chunks_to_set():
    kind = ScheduleKind("interleaved-1f1b")
    made = generate(kind, num_stages=6, num_microbatches=9, num_chunks=2)
    assert made == interleaved(num_stages=6, num_microbatches=9, num_chunks=2)


@pytest.mark.parametrize("kind", [kind for kind in ScheduleKind if not kind.facts.takes_chunks])
def test_chunks_that_would_be_ignored_are_refused(kind: ScheduleKind):
    with pytest.raises(PlanError, match=f"`num_chunks` must be 1 for the schedule {kind}, not 2"):
        generate(kind, num_stages=4, num_microbatches=2, num_chunks=2)


@pytest.mark.parametrize("kind", ScheduleKind)
@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_what_a_schedule_keeps_is_its_closed_form(
    kind: ScheduleKind, num_stages: int, num_microbatches: int
):
    size = {"num_stages": num_stages, "num_microbatches": num_microbatches}
    chunked = {**size, "num_stages": 2 * num_stages, "num_chunks": 2}
    # Deeper at the first stage than at the others, and shallower than by default.
    deep = tuple(max(1, num_microbatches - 2 * stage) for stage in range(num_stages))
    sizes = [
        size,
        *([{**size, "warmup": deep}] if kind.facts.takes_warmup else []),
        *([chunked] if kind.facts.takes_chunks else []),
    ]
    for each in sizes:
        if kind.facts.takes_chunks and num_microbatches % num_stages:
            continue  # its generator refuses them
        assert peak_live(generate(kind, **each)) == peak_live_of_kind(kind, **each)
