"""Islands of a plan: every rank in one, with its own batch, its own trees, and its counterparts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.collective import SyncTree, ranks
from jaxpipe.collective.sync_tree import restricted
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, check_islands, check_plan, default_plan, island_of
from jaxpipe.topo import load
from tests.collective.strategies import sync_trees
from tests.plan_section import decided

LAPTOP = load("laptop")


def plan_of(*, stages: int, replicas: int, tied: bool = True, cluster: str = "laptop"):
    config = decided(cluster=cluster, stages=stages, replicas=replicas)
    return default_plan(config, load(cluster), num_layers=4, batch=2 * replicas, tied=tied)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_rank_is_on_one_island(stages: int, per_island: int, islands: int, tied: bool):
    if stages * per_island * islands > len(LAPTOP):
        return
    plan = plan_of(stages=stages, replicas=per_island * islands, tied=tied)
    check_islands(plan, num_islands=islands)
    found = [island_of(plan, rank=rank, num_islands=islands) for rank in range(plan.num_ranks)]
    assert [rank in each.ranks for rank, each in enumerate(found)] == [True] * plan.num_ranks
    by_number = {each.number: each for each in found}
    assert list(by_number) == list(range(islands))
    assert sum(each.plan.batch for each in by_number.values()) == plan.batch
    assert sum(each.share for each in by_number.values()) == pytest.approx(1)
    for each in by_number.values():
        check_plan(each.plan, num_devices=len(LAPTOP))
        assert each.counterparts == found[0].counterparts
        for inside, counterparts in enumerate(each.counterparts):
            assert counterparts[each.number] == each.ranks.start + inside
            assert len({plan.stage(rank) for rank in counterparts}) == 1
        for stage, tree in enumerate(each.plan.sync):
            own = {rank for rank in plan.holders(stage) if rank in each.ranks}
            assert {each.ranks.start + rank for rank in ranks(tree)} == own


def test_one_island_is_the_plan():
    plan = plan_of(stages=2, replicas=3)
    assert island_of(plan, rank=4, num_islands=1).plan == plan


def test_an_island_keeps_the_trees_inside_it():
    plan = plan_of(stages=1, replicas=4, cluster="two-region")
    assert plan.sync[0] == ((0, 1), (2, 3))
    second = island_of(plan, rank=2, num_islands=2)
    assert second.plan.sync_all == (0, 1)
    assert second.replicas == range(2, 4)


@given(sync_trees(), st.sets(st.integers(0, 5), min_size=1))
def test_a_restricted_tree_has_its_members_in_order(tree: SyncTree, members: set[int]):
    kept = [rank for rank in ranks(tree) if rank in members]
    if kept:
        assert list(ranks(restricted(tree, members))) == kept


@pytest.mark.parametrize(
    ("plan", "islands", "words"),
    [
        (
            plan_of(stages=1, replicas=3),
            2,
            r"`outer.islands` \(2\) must divide the repl",
        ),
    ],
)
def test_a_plan_without_such_islands_is_refused(plan: Plan, islands: int, words: str):
    with pytest.raises(PlanError, match=words):
        check_islands(plan, num_islands=islands)
