"""Ranks of boundaries: chosen as a grid of all codecs and ranks says, within a limit."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import pytest

from experiments.which_compression import grid
from jaxpipe.collective import CodecLimit
from jaxpipe.config import Config, cluster_from, config_of_settings
from jaxpipe.outer.loss_law import compute_factor
from jaxpipe.plan import Plan
from jaxpipe.propose.loss_prices import RANK_GAPS
from jaxpipe.propose.options import Goal, SearchOptions
from jaxpipe.propose.query import Query
from jaxpipe.propose.rank_choice import RankChoice, as_section, choose_ranks
from jaxpipe.propose.resolve import plan_from
from jaxpipe.propose.time_to_loss import propose_to_loss

CASES = tomllib.loads(Path(grid.__file__).with_name("cases.toml").read_text())["grid"]
FOUR, TWO = CASES["shapes"]
GAPS = RANK_GAPS[min(RANK_GAPS)]  # of the small model of the cases
LEAST = min(gap for ratio, gap in GAPS.items() if ratio > 1)
"""The price of the widest rank."""
FACTOR = partial(compute_factor, num_parameters=1e6)


def config_on(folder: Path, shape: list[str], *, gbps: float) -> Config:
    """Return a configuration on four hosts whose links have these Gbit/s, and 1 ms."""
    links = {"latency_ms": [1.0, 1.0], "bandwidth_gbps": [gbps, gbps]}
    file = grid.cluster_file(folder, 0, {**CASES, **links})
    return config_of_settings([*CASES["settings"], *shape, f"plan.cluster={file}"])


def chosen(
    config: Config,
    plan: Plan,
    *,
    most_gap: float = inf,
    factor: Callable[[float], float] = FACTOR,
) -> RankChoice | None:
    query = Query(config=config, cluster=cluster_from(config))
    return choose_ranks(query, plan, CodecLimit.SAFE, factor=factor, most_gap=most_gap)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_the_choice_is_within_3_percent_of_the_best_of_a_grid(tmp_path: Path, seed: int) -> None:
    row = grid.compare(grid.cluster_file(tmp_path, seed, CASES), CASES["settings"], TWO)
    assert row["points"] == 135
    assert float(row["ratio"]) <= 1.03


def test_without_a_price_slow_links_get_the_narrowest_and_fast_ones_the_widest(
    tmp_path: Path,
) -> None:
    ratios = sorted(ratio for ratio in GAPS if ratio > 1)
    for gbps, ratio, num_places in ((0.0005, ratios[-1], 3), (100.0, ratios[0], 1)):
        config = config_on(tmp_path, FOUR, gbps=gbps)
        choice = chosen(config, plan_from(config), factor=lambda _: 1.0)
        assert choice is not None
        assert {rank for _, rank in choice.bottlenecks} == {128 // ratio}
        assert num_places <= len(choice.bottlenecks) <= 3
        assert choice.equal_loss_s == choice.step_s


def test_a_limit_of_the_price_leaves_out_narrow_ranks(tmp_path: Path) -> None:
    config = config_on(tmp_path, FOUR, gbps=0.002)
    plan = plan_from(config)
    assert chosen(config, plan) is not None
    choice = chosen(config, plan, most_gap=LEAST)
    assert choice is not None
    allowed = {128 // ratio for ratio, gap in GAPS.items() if gap <= LEAST}
    assert {rank for _, rank in choice.bottlenecks} <= allowed
    assert chosen(config, plan, most_gap=LEAST / 2) is None


def test_plans_without_narrow_boundaries_have_no_ranks(tmp_path: Path) -> None:
    config = config_on(tmp_path, FOUR, gbps=0.01)
    plan = plan_from(config)
    assert chosen(config, plan.of_each(cut=(4,), devices=(0,), warmup=None)) is None
    unlike = replace(plan, pipelines=(plan.pipelines[0], replace(plan.pipelines[0], cut=(2, 2))))
    assert chosen(config, unlike) is None


def test_a_section_states_the_plan_again(tmp_path: Path) -> None:
    config = config_on(tmp_path, TWO, gbps=0.1)
    plan = plan_from(config)
    section = as_section(config.plan, plan, cluster_from(config))
    assert section is not None
    again = plan_from(replace(config, plan=replace(section, all_reduce=plan.all_reduce)))
    assert again == plan


def test_methods_above_the_limit_are_left_out(tmp_path: Path) -> None:
    config = config_on(tmp_path, TWO, gbps=0.01)
    options = SearchOptions(objective=Goal.LOSS, budget=0.3, max_loss_percent=50 * LEAST)
    answer = propose_to_loss(config, options)
    assert {method.name for method in answer.methods} == {"uncompressed", "codecs"}
    refusals = dict(answer.refusals)
    for name in ("rank", "rank and codecs"):
        assert "% of loss" in refusals[name]
        assert f"`--max-loss-percent` ({50 * LEAST:g}) is below its price, +" in refusals[name]
