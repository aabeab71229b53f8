"""Plans that count on links between regions which nothing is said to share."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import Plan, default_plan
from jaxpipe.propose.unshared_links import (
    TrunkCost,
    UnsharedLinks,
    suited_to_sharing,
    unshared_links,
)
from jaxpipe.search import Candidate, Found
from jaxpipe.search.best import Trial
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import Trunk
from tests.plan.models import profile_of
from tests.plan_section import decided
from tests.topo.strategies import clusters

CLUSTER = topo.load("fluidstack-3region:hosts=1")
OPEN = replace(CLUSTER, trunks=())
LAYERS, BATCH = 6, 6
PROFILE = profile_of(LAYERS)


def conditions(cluster: topo.Cluster) -> Conditions:
    return Conditions(
        cluster=cluster, profile=PROFILE, slow=np.ones(len(cluster)), gradient_bytes=4e6
    )


def plan_of(stages: int, replicas: int, cluster: topo.Cluster = CLUSTER) -> Plan:
    section = decided(stages=stages, replicas=replicas)
    plan = default_plan(section, cluster, num_layers=LAYERS, batch=BATCH, tied=False)
    return replace(plan, all_reduce=AllReduceKind.SHARDED)  # all connections at once


def found(best: Plan, *others: Plan, slower: float = 1.01) -> Found:
    trials = [
        Trial(plan=plan, value=10.0 * (1.0 if plan is best else slower)) for plan in (best, *others)
    ]
    return Found(
        plan=best,
        value=10.0,
        num_valued=len(trials),
        left_out=(),
        candidates=tuple(
            Candidate(choice="shape", name=trial.plan.shape, trial=trial) for trial in trials
        ),
    )


def test_a_plan_is_priced_with_trunks_beside_the_one_that_crosses_least():
    wide, narrow = plan_of(1, 6), plan_of(2, 1)
    owed = unshared_links(wide, found(wide, narrow), conditions(OPEN))
    assert owed is not None
    shared = topo.with_trunks_of_one_pair(OPEN)
    assert owed.plan.step_s == plan_step_s(wide, conditions(OPEN))
    assert owed.plan.shared_s == plan_step_s(wide, conditions(shared)) > owed.plan.step_s
    # Two stages of one host send nothing to other regions, and are slower or are not named.
    if owed.least is not None:
        assert owed.least.shape == narrow.shape
        assert owed.least.shared_s == owed.least.step_s > owed.plan.step_s


@pytest.mark.parametrize(
    "harmless",
    [
        (plan_of(2, 1), OPEN),  # inside a region
        (plan_of(1, 6), topo.with_trunks_of_one_pair(OPEN)),  # stated
    ],
    ids=["one region", "stated trunks"],
)
def test_nothing_is_said_or_changed_where_nothing_is_assumed(harmless: tuple[Plan, topo.Cluster]):
    plan, cluster = harmless
    other = plan_of(3, 2)
    assert unshared_links(plan, found(plan, other), conditions(cluster)) is None
    assert suited_to_sharing(found(plan, other), conditions(cluster)).plan == plan


@pytest.mark.parametrize(("slower", "changes"), [(1.02, True), (1.04, False)])
def test_of_plans_within_three_percent_the_one_that_needs_unshared_links_least_is_taken(
    slower: float, changes: bool
):
    wide, narrow = plan_of(1, 6), plan_of(2, 1)
    chosen = suited_to_sharing(found(wide, narrow, slower=slower), conditions(OPEN))
    assert chosen.plan == (narrow if changes else wide)
    assert chosen.value == pytest.approx(10.0 * (slower if changes else 1.0))
    assert chosen.left_out == ((2, 3, 4, 5) if changes else ())


def test_a_line_says_which_part_of_the_gain_depends_on_it():
    owed = UnsharedLinks(
        regions=("east", "middle"),
        plan=TrunkCost(shape="1 stage x 32 replicas", step_s=16.0, shared_s=22.0),
        least=TrunkCost(shape="8 stages x 4 replicas", step_s=20.0, shared_s=23.0),
    )
    assert owed.line == (
        "the cluster file has no `[[trunks]]` between east and middle: if all connections share "
        "what one has, a step takes 22 s, not 16 s, and 8 stages x 4 replicas, which crosses "
        "least, 23 s, not 20 s: 75% of the gain over it depends on this; state `capacity_gbps`"
    )
    assert replace(owed, least=None).line.endswith("not 16 s; state `capacity_gbps`")


@given(cluster=clusters(), data=st.data())
def test_trunks_that_nothing_can_fill_are_none(cluster: topo.Cluster, data: st.DataObject):
    stages = data.draw(st.integers(1, min(3, len(cluster))))
    # Numbers of replicas that divide the batch.
    replicas = data.draw(st.sampled_from([n for n in (1, 2, 3, 6) if n * stages <= len(cluster)]))
    plan = plan_of(stages, replicas, cluster)
    ways = topo.unshared_regions(replace(cluster, trunks=()))
    endless = tuple(Trunk(source=a, destination=b, bytes_per_s=1e300) for a, b in ways)
    unshared, wide = (conditions(replace(cluster, trunks=trunks)) for trunks in ((), endless))
    assert plan_step_s(plan, wide) == plan_step_s(plan, unshared)
