"""A plan for a configuration with islands is searched, and told, by the mean step of its loop."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from jaxpipe.cli.plan_text import plan_lines
from jaxpipe.config import Config, cluster_from
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import PlanConfig
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.proposal import propose
from jaxpipe.propose.searched_plan import searched_plan
from jaxpipe.run.forecast.prediction import predict
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate import step_objective
from jaxpipe.simulate.outer_step import mean_step_s
from tests.propose.test_time_to_loss import config_of_settings, settings_of

OPTIONS = SearchOptions(budget=0.5)
EVERY = 10
OFF = OuterConfig()


def config_of(tmp_path: Path, *, islands: int, gbps: float = 0.05) -> Config:
    config = config_of_settings(settings_of(tmp_path, gbps=gbps, **{"train.steps": 2 * EVERY}))
    return replace(config, outer=OuterConfig(islands=islands, every=EVERY) if islands else OFF)


def test_its_step_is_the_predicted_one_and_no_sum_of_each_step(tmp_path: Path):
    config = config_of(tmp_path, islands=2)
    proposal = propose(config, OPTIONS)
    conditions = conditions_of(config, cluster_from(config), remat=proposal.plan.remat)
    assert proposal.step_s == pytest.approx(mean_step_s(proposal.plan, conditions))
    assert proposal.outer_s > 0
    assert proposal.bound.seconds <= proposal.step_s
    text = "\n".join(plan_lines(config, OPTIONS, proposal))
    assert f"a step takes {proposal.step_s:.4g} s on average (simulated)" in text
    assert "outer steps" in text


def test_a_searched_plan_has_the_step_that_simulate_predicts(tmp_path: Path):
    config = config_of(tmp_path, islands=2)
    planned = searched_plan(config, cluster_from(config), seconds=0.5)
    predicted = predict(config)
    assert predicted.plan == planned.plan
    assert predicted.step_s == pytest.approx(planned.step_s)
    assert planned.default_s is not None
    assert planned.step_s <= planned.default_s


def test_what_is_fastest_without_islands_is_not_with_them(tmp_path: Path):
    """Across a slow link two stages send less than sums of each step, and more than islands do."""
    seconds: dict[tuple[int, int], float] = {}
    # Replicas of one stage are islands in a region each; the two stages are in two regions.
    devices = {1: ("west-0:0", "west-1:0", "east-0:0", "east-1:0")}
    devices[2] = ("west-0:0", "east-0:0", "west-1:0", "east-1:0")
    for islands, stages in product((0, 2), (1, 2)):
        config = config_of(tmp_path, islands=islands)
        cluster = cluster_from(config)
        section = PlanConfig(
            cluster=config.plan.cluster,
            devices=devices[stages],
            stages=stages,
            replicas=4 // stages,
            microbatch=2,
            schedule=ScheduleKind.ZB_H2,
        )
        plan = decided_plan(replace(config, plan=section), cluster)
        seconds[islands, stages] = step_objective(conditions_of(config, cluster))(plan)
    assert seconds[0, 2] < seconds[0, 1]
    assert seconds[2, 1] < seconds[2, 2]
