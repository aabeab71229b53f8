"""The identity plan, and what a plan says of itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topo
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, PlanConfig, identity_plan
from jaxpipe.schedule import Bucket, ScheduleKind, check, ranks

KINDS = [kind for kind in ScheduleKind if kind is not ScheduleKind.INTERLEAVED]
"""Those that take any number of microbatches."""


def plan_of(config: PlanConfig, *, tied: bool = True) -> Plan:
    return identity_plan(
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
    plan = plan_of(PlanConfig(stages=stages, replicas=replicas, schedule=schedule), tied=tied)
    assert (plan.num_stages, plan.num_replicas) == (stages, replicas)
    for rank in range(plan.num_ranks):
        replica, stage = plan.replica(rank), plan.stage(rank)
        assert plan.rank(replica=replica, stage=stage) == rank == plan.device(rank)
        assert rank in ranks(plan.tree(Bucket.STAGE, stage=stage))
    ends = {r for r in range(plan.num_ranks) if plan.stage(r) in (0, stages - 1)}
    assert set(ranks(plan.tree(Bucket.SHARED, stage=0))) == ends
    assert set(ranks(plan.tree(Bucket.SCALARS, stage=0))) == set(range(plan.num_ranks))
    check(plan.train_schedule())
    check(plan.eval_schedule(num_microbatches=2))
    assert sum(len(plan.layers(stage)) for stage in range(stages)) == stages + 1


@pytest.mark.parametrize("field", ["stages", "replicas", "microbatch"])
def test_a_plan_needs_positive_numbers(field: str):
    numbers = {"stages": 1, "replicas": 1, "microbatch": 1} | {field: 0}
    with pytest.raises(ValueError, match=f"`{field}` must be at least 1, is 0"):
        PlanConfig(
            stages=numbers["stages"],
            replicas=numbers["replicas"],
            microbatch=numbers["microbatch"],
        )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (PlanConfig(stages=5, replicas=4), r"= 20, but cluster 'laptop' has 16; use fewer, or a"),
        (PlanConfig(cut=(3,)), r"`plan.cut` has one number for each stage: it has 1"),
        (PlanConfig(replicas=4, microbatch=3), r"4 x 3 = 12: it is 16; use 12 or 24"),
        (PlanConfig(replicas=4, microbatch=8), r"4 x 8 = 32: it is 16; use 32"),
        (PlanConfig(warmup=(1, 1)), r"only eager-1f1b has a warm-up"),
    ],
)
def test_plans_that_cannot_run_are_refused(config: PlanConfig, words: str):
    with pytest.raises(PlanError, match=words):
        plan_of(config)
