"""The identity plan: rank r on device r, sums along the islands of the network."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, PlanConfig, identity_plan
from jaxpipe.schedule import Bucket, ScheduleKind, check, ranks
from topo import load


def make(*, batch: int = 8, num_layers: int = 6, tied: bool = True, **changes: Any) -> Plan:
    config = PlanConfig(**{"cluster": "laptop", **changes})
    cluster = load(config.cluster)
    return identity_plan(config, cluster, num_layers=num_layers, batch=batch, tied=tied)


@given(
    stages=st.integers(1, 4),
    replicas=st.integers(1, 4),
    tied=st.booleans(),
    rounds=st.integers(1, 3),
)
def test_every_rank_has_a_place_and_every_tree_its_ranks(
    stages: int, replicas: int, tied: bool, rounds: int
):
    plan = make(stages=stages, replicas=replicas, tied=tied, batch=replicas * rounds)
    assert plan.num_ranks == stages * replicas
    assert plan.num_microbatches == rounds
    for rank in range(plan.num_ranks):
        assert plan.rank(replica=plan.replica(rank), stage=plan.stage(rank)) == rank
        assert plan.device(rank) == rank
        members = ranks(plan.tree(Bucket.STAGE, stage=plan.stage(rank)))
        assert rank in members
        assert {plan.stage(member) for member in members} == {plan.stage(rank)}
    assert sorted(ranks(plan.sync_all)) == list(range(plan.num_ranks))
    ends = [r for r in range(plan.num_ranks) if plan.stage(r) in (0, stages - 1)]
    assert sorted(ranks(plan.sync_shared)) == ends
    check(plan.train_schedule())
    check(plan.eval_schedule(num_microbatches=rounds))


def test_sums_stay_inside_a_region_first():
    plan = make(cluster="two-region", stages=1, replicas=4)
    assert plan.sync == (((0, 1), (2, 3)),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stages": 4, "replicas": 5, "batch": 5}, r"= 4 x 5 = 20, but cluster 'laptop' has 16"),
        ({"batch": 7}, r"= 2 x 1 = 2: it is 7; use 6 or 8"),
        ({"batch": 1}, r"= 2 x 1 = 2: it is 1; use 2"),
        ({"warmup": (2, 1)}, "only eager-1f1b has a warm-up"),
        ({"schedule": ScheduleKind.EAGER_ONE_F_ONE_B, "warmup": (1, 2)}, "warmup"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str):
    with pytest.raises(PlanError, match=words):
        make(**changes)


@pytest.mark.parametrize("field", ["stages", "replicas", "microbatch"])
def test_counts_are_positive(field: str):
    changes: dict[str, Any] = {field: 0}
    with pytest.raises(ValueError, match=f"`{field}` must be at least 1, is 0"):
        make(**changes)
