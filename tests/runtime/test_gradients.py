"""A pipelined, replicated step gives the loss and every gradient of one device."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import run_ranks
from jaxpipe.plan import Plan
from jaxpipe.runtime.config import Loop
from jaxpipe.schedule import Op, ScheduleKind
from tests.helpers import mpi_command, mpi_environment
from tests.oracles.one_device import (
    TOLERANCE,
    draw_tokens,
    loss_and_gradients,
    worst_error,
)
from tests.programs.mpi_gradients import CASES, NUM_RANKS, read_result
from tests.runtime.pipelined import (
    compile_all,
    gradients_of_rank,
    make_plan,
    make_uneven_plan,
    ops_of,
)

pytestmark = pytest.mark.slow

TIED = ((5,), (1, 4), (1, 2, 1, 1))
UNTIED = (2, 1, 2)
# Few partitions: compiling their stages is what takes time.
CUTS = (*((True, 2, cut) for cut in TIED), (False, 1, UNTIED))


SCHEDULES = tuple(k for k in ScheduleKind if k is not ScheduleKind.INTERLEAVED)
MICROBATCHES = (1, 3, 8)


# Each schedule with each partition, and each of these with each number of microbatches, once.
@pytest.mark.parametrize(
    ("tied", "num_replicas", "cut", "schedule", "num_microbatches", "in_flight"),
    [
        (tied, num_replicas, cut, schedule, MICROBATCHES[(i + j) % len(MICROBATCHES)], 1 + i + j)
        for i, (tied, num_replicas, cut) in enumerate(CUTS)
        for j, schedule in enumerate(SCHEDULES)
    ],
)
def test_gradients_equal_those_of_one_device(
    tied: bool,
    num_replicas: int,
    cut: tuple[int, ...],
    schedule: ScheduleKind,
    num_microbatches: int,
    in_flight: int,
) -> None:
    plan = make_plan(
        schedule=schedule,
        cut=cut,
        num_replicas=num_replicas,
        num_microbatches=num_microbatches,
        tied=tied,
    )
    assert_gradients_of_one_device(plan, in_flight=in_flight)


@pytest.mark.parametrize(
    ("tied", "cut", "num_chunks", "num_replicas", "num_microbatches"),
    [
        (True, (5,), 1, 1, 1),
        (True, (1, 4), 2, 1, 3),
        (True, (1, 4), 2, 2, 1),
        (True, (1, 2, 1, 1), 2, 1, 8),
        (True, (1, 2, 1, 1), 2, 2, 4),
        (True, (1, 2, 1, 1), 4, 2, 3),
        (False, UNTIED, 3, 1, 4),
        (False, UNTIED, 3, 2, 3),
    ],
)
def test_gradients_of_several_chunks_equal_those_of_one_device(
    tied: bool,
    cut: tuple[int, ...],
    num_chunks: int,
    num_replicas: int,
    num_microbatches: int,
) -> None:
    plan = make_plan(
        schedule=ScheduleKind.INTERLEAVED,
        cut=cut,
        num_chunks=num_chunks,
        num_replicas=num_replicas,
        num_microbatches=num_microbatches,
        tied=tied,
    )
    assert_gradients_of_one_device(plan)


@pytest.mark.parametrize("kind", [k for k in AllReduceKind if k is not AllReduceKind.LIBRARY])
def test_gradients_of_every_all_reduce_equal_those_of_one_device(kind: AllReduceKind) -> None:
    plan = make_plan(
        schedule=ScheduleKind.ONE_F_ONE_B,
        cut=(1, 4),
        num_replicas=3,
        num_microbatches=1,
        tied=True,
    )
    assert_gradients_of_one_device(replace(plan, all_reduce=kind))


@pytest.mark.parametrize(
    ("schedule", "cuts", "num_microbatches", "tied", "num_chunks"),
    [
        (ScheduleKind.GPIPE, ((1, 4), (5,)), (1, 3), True, 1),
        (ScheduleKind.ONE_F_ONE_B, ((5,), (1, 4)), (3, 2), True, 1),
        (ScheduleKind.ZB_H1, ((1, 4), (5,)), (2, 5), True, 1),
        (ScheduleKind.ZB_H2, ((1, 4), (5,)), (5, 1), True, 1),
        # Alike but for their shares of the batch.
        (ScheduleKind.EAGER_ONE_F_ONE_B, ((1, 4), (1, 4)), (4, 1), True, 1),
        (ScheduleKind.INTERLEAVED, ((1, 2, 1, 1), (1, 4)), (4, 3), True, 2),
        (ScheduleKind.ONE_F_ONE_B, (UNTIED, (5,)), (3, 1), False, 1),
        (ScheduleKind.ZB_H1, (UNTIED, (5,)), (1, 4), False, 1),
    ],
)
def test_gradients_of_unlike_replicas_equal_those_of_one_device(
    schedule: ScheduleKind,
    cuts: tuple[tuple[int, ...], ...],
    num_microbatches: tuple[int, ...],
    tied: bool,
    num_chunks: int,
) -> None:
    plan = make_uneven_plan(
        schedule=schedule,
        cuts=cuts,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        tied=tied,
    )
    assert_gradients_of_one_device(plan)


@pytest.mark.parametrize("kind", [k for k in AllReduceKind if k is not AllReduceKind.LIBRARY])
def test_gradients_of_every_all_reduce_of_unlike_replicas(kind: AllReduceKind) -> None:
    plan = make_uneven_plan(
        schedule=ScheduleKind.ONE_F_ONE_B,
        cuts=((1, 4), (5,), (1, 4)),
        num_microbatches=(2, 1, 1),
        tied=True,
    )
    assert_gradients_of_one_device(replace(plan, all_reduce=kind))


# Whole backwards, and split ones, whose cotangent is a pair as well.
def test_split_backwards_with_auxiliary_losses_have_the_gradients_of_one_device() -> None:
    plan = make_plan(
        schedule=ScheduleKind.ZB_H1, cut=(2, 3), num_replicas=2, num_microbatches=3, tied=True
    )
    assert_gradients_of_one_device(plan, experts=3, loop=Loop.SCAN)


def test_gradients_of_unlike_replicas_with_auxiliary_losses() -> None:
    plan = make_uneven_plan(
        schedule=ScheduleKind.ONE_F_ONE_B, cuts=((2, 3), (5,)), num_microbatches=(2, 1), tied=True
    )
    assert_gradients_of_one_device(plan, experts=3, loop=Loop.SCAN)


def assert_gradients_of_one_device(
    plan: Plan, *, experts: int = 0, loop: Loop = Loop.UNROLLED, in_flight: int = 1
) -> None:
    tokens = draw_tokens(num_samples=plan.batch)
    ops = frozenset(Op)  # one compilation for every schedule; experts take longer to compile
    if experts:
        ops = ops_of(plan)
    if experts or not plan.is_even:
        compile_all(plan, experts=experts, loop=loop, ops=ops)  # before any deadline
    results = run_ranks(
        plan.num_ranks,
        lambda t: gradients_of_rank(
            t, plan, tokens, experts=experts, loop=loop, ops=ops, in_flight=in_flight
        ),
    )
    for gradients, totals in results:
        error = worst_error(gradients, totals, tokens, tied=plan.tied, experts=experts)
        assert error <= TOLERANCE
    seen = {name for gradients, _ in results for name in gradients}
    assert seen == set(loss_and_gradients(tokens, tied=plan.tied, experts=experts)[1])


@pytest.mark.mpi
def test_gradients_equal_those_of_one_device_over_mpi(tmp_path: Path) -> None:
    command = mpi_command(NUM_RANKS, "-m", "tests.programs.mpi_gradients", str(tmp_path))
    subprocess.run(command, env=mpi_environment(), check=True, timeout=240)
    for case in CASES:
        tokens, seen = draw_tokens(num_samples=case.plan().batch), set[str]()
        for rank in range(NUM_RANKS):
            gradients, totals = read_result(case.file(tmp_path, rank))
            assert worst_error(gradients, totals, tokens, tied=True) <= TOLERANCE, case
            seen |= set(gradients)
        assert seen == set(loss_and_gradients(tokens, tied=True)[1]), case
