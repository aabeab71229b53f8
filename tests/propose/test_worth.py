"""Objectives in dollars and seconds, limits, and the Pareto front."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.models import preset_config
from jaxpipe.propose.options import Goal, SearchOptions
from jaxpipe.propose.proposal import Proposal, propose
from jaxpipe.propose.worth import Worth, is_beaten, with_worth
from tests.plan.test_unlike_replicas import one_of_each
from tests.propose.asked import asked

pytestmark = pytest.mark.slow  # searches are limited by the clock
PLAN = one_of_each()
CLUSTER = """
name = "priced"
[[hosts]]
region = "ohio"
count = 2
effective_tflops = 4
dollars_per_hour = 8.0
egress_dollars_per_gb = 0.1
watts = 100
[[hosts]]
region = "oregon"
count = 2
effective_tflops = 1
dollars_per_hour = 0.5
egress_dollars_per_gb = 0.1
watts = 200
[inside_region]
latency_ms = 0.1
bandwidth_gbps = 10
[across_regions]
latency_ms = 20
bandwidth_gbps = 1
"""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_front_has_all_plans_that_no_other_beats(pairs: list[tuple[int, int]]):
    front: list[Worth] = []
    for seconds, dollars in pairs:
        worth = Worth(seconds=seconds, dollars=dollars, plan=PLAN)
        if not is_beaten(worth, front):
            front = with_worth(front, worth)
    expected = {
        pair
        for pair in pairs
        if not any(o != pair and o[0] <= pair[0] and o[1] <= pair[1] for o in pairs)
    }
    assert [(each.seconds, each.dollars) for each in front] == sorted(expected)


def proposed(tmp_path: Path, **changes: object) -> Proposal:
    path = tmp_path / "priced.toml"
    path.write_text(CLUSTER)
    config = asked(cluster=str(path), batch=16, paced={"ideal": "true"}, train={"remat": "full"})
    options = SearchOptions(budget=2.0)
    return propose(config, replace(options, **changes))  # pyright: ignore[reportArgumentType]


def test_the_cheapest_step_is_not_the_fastest(tmp_path: Path):
    fastest, cheapest = proposed(tmp_path), proposed(tmp_path, objective=Goal.DOLLARS)
    assert fastest.dollars is not None
    assert cheapest.dollars is not None
    # Four times the speed for sixteen times the price: the slow devices, or one of them.
    assert cheapest.dollars < fastest.dollars
    assert fastest.split.step_s < cheapest.split.step_s
    used = {cheapest.cluster.devices[d].region for g in cheapest.plan.groups for d in g}
    assert used == {"oregon"}
    best = min(cheapest.front, key=lambda each: each.costs[1])
    assert best.dollars == pytest.approx(cheapest.dollars)
    assert fastest.bound.seconds <= fastest.split.step_s


def test_limits_are_kept(tmp_path: Path):
    fastest, cheapest = proposed(tmp_path), proposed(tmp_path, objective=Goal.DOLLARS)
    between_s = (fastest.split.step_s + cheapest.split.step_s) / 2
    quick = proposed(tmp_path, objective=Goal.DOLLARS, max_step_s=between_s)
    assert quick.split.step_s <= between_s
    assert quick.dollars is not None
    assert cheapest.dollars is not None
    assert quick.dollars >= cheapest.dollars
    limited = proposed(tmp_path, max_step_dollars=quick.dollars)
    assert limited.dollars is not None
    assert limited.dollars <= quick.dollars
    with pytest.raises(PlanError, match="none that was found does, the nearest takes"):
        proposed(tmp_path, max_step_dollars=1e-12)


def test_energy_and_dollars_of_tokens_are_kept_within_limits(tmp_path: Path):
    fastest = proposed(tmp_path)
    frugal = proposed(tmp_path, objective=Goal.ENERGY)
    assert fastest.dollars is not None
    assert fastest.watt_hours is not None
    assert frugal.watt_hours is not None
    # Four times the speed at half the power: the fast devices alone.
    used = {frugal.cluster.devices[d].region for g in frugal.plan.groups for d in g}
    assert used == {"ohio"}
    assert frugal.watt_hours <= fastest.watt_hours
    assert fastest.tokens == fastest.plan.batch * preset_config("tiny").sequence
    assert all(each.watt_hours is not None for each in frugal.front)
    per_million = 0.9 * fastest.dollars / fastest.tokens * 1e6
    limited = proposed(tmp_path, max_dollars_per_million_tokens=per_million)
    assert limited.dollars is not None
    assert limited.dollars / limited.tokens * 1e6 <= per_million
    with pytest.raises(PlanError, match="watt-hours a step; raise `--max-step-watt-hours`, or"):
        proposed(tmp_path, max_step_watt_hours=1e-12)


def test_a_plan_that_is_worse_in_everything_is_beaten():
    good = Worth(seconds=1.0, watt_hours=2.0, plan=PLAN)
    assert is_beaten(Worth(seconds=1.0, watt_hours=3.0, plan=PLAN), [good])
    assert not is_beaten(Worth(seconds=2.0, watt_hours=1.0, plan=PLAN), [good])


def test_energy_needs_powers():
    config = asked(cluster="two-region", batch=8, paced={"tflops": 1.0})
    with pytest.raises(PlanError, match="`watts` of device 'ohio-0:0' is missing; add it to"):
        propose(config, SearchOptions(objective=Goal.ENERGY))


def test_dollars_need_prices():
    config = asked(cluster="two-region", batch=8, paced={"tflops": 1.0})
    with pytest.raises(PlanError, match="`dollars_per_hour` of device 'ohio-0:0' is missing; add"):
        propose(config, SearchOptions(objective=Goal.DOLLARS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"max_step_s": 1.0},
            "`--max-step-s` is a limit for the objective dollars or energy: it is 1",
        ),
        ({"max_step_dollars": 0.0}, "`--max-step-dollars` must be above 0, not 0.0"),
        ({"max_step_dollars": 1.0, "objective": Goal.DTFM}, "limit for the objective time"),
        (
            {"max_dollars_per_million_tokens": 1.0, "objective": Goal.DOLLARS},
            "`--max-dollars-per-million-tokens` is a limit for the objective time or energy",
        ),
        ({"max_step_watt_hours": -1.0}, "`--max-step-watt-hours` must be above 0, not -1.0"),
        ({"max_tensor": 0}, "`--max-tensor` must be at least 1, not 0"),
    ],
)
def test_wrong_limits_are_refused(changes: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words):
        SearchOptions(**changes)  # pyright: ignore[reportArgumentType]


def test_groups_are_tried():
    config = asked(
        cluster="homogeneous:hosts=2,devices=4,bandwidth_gbps=0.01",
        model="gpt-xl-24",
        batch=1,
        train={"remat": "full"},
    )
    alone = propose(config, SearchOptions(budget=1.0))
    grouped = propose(config, SearchOptions(budget=3.0, max_tensor=4))
    # One sample fills no pipeline, and has no replicas: only parts of layers share its work.
    assert grouped.plan.has_groups
    assert grouped.split.step_s < alone.split.step_s


def test_unlike_replicas_are_tried(tmp_path: Path):
    path = tmp_path / "unlike.toml"
    hosts = "".join(f"[[hosts]]\nname = 'h{n}'\neffective_tflops = {n}e-3\n" for n in (1, 2, 4))
    path.write_text(
        f"name = 'unlike'\n{hosts}[inside_region]\nlatency_ms = 0.1\nbandwidth_gbps = 10\n"
    )
    sections: dict[str, Any] = {"optimizer": {"sharded": "true"}, "train": {"remat": "full"}}
    config = asked(cluster=str(path), batch=28, **sections)
    found = propose(config, SearchOptions(budget=4.0))
    shape = {"stages": found.plan.pipelines[0].num_stages, "replicas": 1}
    even = propose(asked(cluster=str(path), batch=28, plan=shape, **sections), SearchOptions())
    assert even.plan.is_even
    assert not found.plan.is_even
    assert found.dtfm_s is None
    assert found.split.step_s < even.split.step_s
    # A replica for each device, with its part of the samples, keeps all of them busy.
    assert found.split.step_s <= 1.05 * found.bound.seconds
