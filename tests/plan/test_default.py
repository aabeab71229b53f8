"""The identity plan, and what a plan says of itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import ranks
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, PlanConfig, check_plan, default_plan
from jaxpipe.schedule import Bucket, ScheduleKind, check
from tests.plan_section import decided

KINDS = [kind for kind in ScheduleKind if kind is not ScheduleKind.INTERLEAVED]
"""Those that take any number of microbatches."""


def plan_of(config: PlanConfig, *, tied: bool = True) -> Plan:
    assert config.stages is not None
    assert config.replicas is not None
    return default_plan(
        config,
        topo.load("laptop"),
        num_layers=config.stages + 1,
        batch=4 * config.replicas,
        tied=tied,
    )


@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.sampled_from(KINDS))
def test_every_rank_has_a_place_and_its_sums(
    stages: int, replicas: int, tied: bool, schedule: ScheduleKind
):
    plan = plan_of(decided(stages=stages, replicas=replicas, schedule=schedule), tied=tied)
    assert (plan.num_stages, plan.num_replicas) == (stages, replicas)
    for rank in range(plan.num_ranks):
        replica, stage = plan.replica(rank), plan.stage(rank)
        assert plan.rank(replica=replica, stage=stage) == rank == plan.device(rank)
        assert rank in ranks(plan.tree(Bucket.STAGE, segment=stage))
    ends = {r for r in range(plan.num_ranks) if plan.stage(r) in (0, stages - 1)}
    assert set(ranks(plan.tree(Bucket.TIED))) == ends
    assert set(ranks(plan.tree(Bucket.SCALARS))) == set(range(plan.num_ranks))
    check(plan.train_schedule())
    check(plan.eval_schedule(num_microbatches=2))
    assert sum(len(plan.layers(stage)) for stage in range(stages)) == stages + 1


@pytest.mark.parametrize(
    ("stages", "chunks", "replicas"), [(1, 1, 1), (2, 2, 3), (4, 2, 2), (6, 3, 1), (12, 3, 2)]
)
def test_ranks_hold_their_chunks(stages: int, chunks: int, replicas: int):
    config = decided(
        stages=stages, chunks=chunks, replicas=replicas, schedule=ScheduleKind.INTERLEAVED
    )
    plan = plan_of(config)
    size = stages // chunks
    assert (plan.num_stages, plan.num_pipeline_ranks, plan.num_ranks) == (
        stages,
        size,
        size * replicas,
    )
    for rank in range(plan.num_ranks):
        held = plan.stages(rank)
        assert list(held) == list(range(rank % size, stages, size))
        assert (plan.stage(rank), plan.device(rank)) == (held[0], rank)
        for stage in held:
            assert plan.rank(replica=plan.replica(rank), stage=stage) == rank
            assert rank in ranks(plan.tree(Bucket.STAGE, segment=stage))
    check_plan(plan, num_devices=16)
    check(plan.train_schedule())
    check(plan.eval_schedule(num_microbatches=3))
    assert len(plan.train_schedule()) == size


def test_ranks_take_the_devices_that_are_named():
    names = ("virginia-1:0", "ohio-0:0", "virginia-0:0")
    config = decided(stages=1, replicas=3, devices=names)
    cluster = topo.load("two-region")
    plan = default_plan(config, cluster, num_layers=2, batch=6, tied=True)
    assert tuple(cluster.devices[plan.device(rank)].name for rank in range(3)) == names
    assert plan.placement == ((3,), (0,), (2,))
    assert plan.sync_all == ((0, 2), 1)
    check_plan(plan, num_devices=4)


@pytest.mark.parametrize("field", ["stages", "replicas", "microbatch", "chunks"])
def test_a_plan_needs_positive_numbers(field: str):
    numbers = {"stages": 1, "replicas": 1, "microbatch": 1, "chunks": 1} | {field: 0}
    with pytest.raises(ValueError, match=f"`{field}` must be from 1 to [0-9]+, not 0"):
        decided(
            stages=numbers["stages"],
            replicas=numbers["replicas"],
            microbatch=numbers["microbatch"],
            chunks=numbers["chunks"],
        )


@pytest.mark.parametrize("field", ["stages", "replicas", "chunks"])
def test_what_is_counted_one_by_one_has_a_limit(field: str):
    with pytest.raises(ValueError, match=f"`{field}` must be from 1 to 65536, not 1000000000"):
        replace(PlanConfig(), **{field: 10**9})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            decided(stages=5, replicas=4),
            "= 20 ranks need as many devices, but cluster",
        ),
        (
            decided(devices=("here-0:1",)),
            "= 4 ranks need .* `plan.devices` names 1",
        ),
        (decided(devices=("here-0:99",)), r"'here-0:99' is not one of its 16: did you mean"),
        (decided(devices=("here-0:1",) * 2), r"names 'here-0:1' 2 times, and .* name it once"),
        (decided(cut=(3,)), r"`plan.cut` has one number for each stage: it has 1"),
        (decided(replicas=4, microbatch=3), r"4 x 3 = 12: it is 16; use 12 or 24"),
        (decided(replicas=4, microbatch=8), r"4 x 8 = 32: it is 16; use 32"),
        (decided(warmup=(1, 1)), r"only eager-1f1b has a warm-up"),
        (
            decided(stages=3, chunks=2),
            r"`plan.stages` \(3\) must be a multiple of `plan.chunks` \(2\)",
        ),
        (decided(chunks=2), r"`plan.chunks` must be 1 for the schedule 1f1b"),
        (
            decided(stages=6, chunks=2, schedule=ScheduleKind.INTERLEAVED),
            r"`train.batch` \(8\) must be a multiple of .* = 2 x 3 x 1 = 6 with .*; use 6 or 12",
        ),
        (
            decided(
                stages=6,
                chunks=2,
                schedule=ScheduleKind.INTERLEAVED,
                shares=(3, 5),
            ),
            r"`plan.shares` gives replica 1 5 samples, which .* = 3 x 1 = 3 with .*; use 3 or 6",
        ),
    ],
)
def test_plans_that_cannot_run_are_refused(config: PlanConfig, words: str):
    with pytest.raises(PlanError, match=words):
        plan_of(config)
