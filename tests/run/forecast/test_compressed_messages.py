"""`jaxpipe simulate` counts the outer loop, and says what compression sends and costs."""

from pathlib import Path
from typing import Any

import pytest

from jaxpipe.config import cluster_from, config_of_settings
from jaxpipe.plan import islands_of
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.forecast.compressed_messages import compression_lines
from jaxpipe.run.forecast.prediction import Prediction, predict
from jaxpipe.simulate import step_breakdown
from jaxpipe.simulate.outer_step import outer_times

PLAN = {"cluster": "two-region", "replicas": 2, "schedule": "1f1b", "microbatch": 2}


def predicted(*settings: str, **plan: Any) -> Prediction:
    return predict(config_of_settings(words(*settings, **plan)))


def words(*settings: str, **plan: Any) -> list[str]:
    section = [f"plan.{name}={value}" for name, value in (PLAN | plan).items()]
    return ["model.preset=tiny", "train.batch=8", "paced.tflops=0.01", *section, *settings]


def test_a_step_of_islands_is_that_of_the_slowest_and_a_part_of_an_outer_step() -> None:
    settings = words("outer.islands=2", "outer.every=20", stages=2)
    config = config_of_settings(settings)
    prediction = predict(config)
    plan, conditions = plan_from(config), conditions_of(config, cluster_from(config))
    islands = islands_of(plan, num_islands=2)
    inner_s = max(step_breakdown(island.plan, conditions).step_s for island in islands)
    times = outer_times(plan, conditions, config.outer)
    assert prediction.step_s == pytest.approx(inner_s + times.outer_s / 20)
    assert len(prediction.account.ranks) == plan.num_ranks
    # Islands inside of regions: no link of a step crosses them.
    assert {(link.source, link.to) for link in prediction.links} == {
        ("ohio", "ohio"),
        ("virginia", "virginia"),
    }
    (row,) = prediction.compressed
    assert row.name == "outer loop"
    assert row.seconds == pytest.approx(times.outer_s)


def test_per_step_sums_take_longer_than_islands_over_the_same_links() -> None:
    apart = predicted("outer.islands=2", "outer.every=20", stages=2)
    together = predicted(stages=2)
    assert together.compressed == ()
    assert apart.step_s < together.step_s


def test_boundaries_say_what_they_send_in_place_of_what() -> None:
    prediction = predicted("comm.boundary=int8", stages=4, replicas=1)
    rows = {row.name: row for row in prediction.compressed}
    assert set(rows) == {"stage 0 to 1", "stage 1 to 2", "stage 2 to 3"}
    for row in rows.values():
        assert row.num_bytes is not None
        assert row.plain_bytes is not None
        assert row.num_bytes / row.plain_bytes == pytest.approx(0.254, abs=1e-3)
    sent = sum(link.activation_bytes for link in prediction.links)
    assert sent == pytest.approx(2 * sum(row.num_bytes or 0 for row in rows.values()))


def test_a_bottleneck_sends_its_numbers_alone() -> None:
    prediction = predicted("model.bottlenecks=[[2,4]]", stages=2, replicas=1)
    (row,) = prediction.compressed
    assert row.sent == "4 of 128 numbers"
    assert row.num_bytes is not None
    assert row.plain_bytes == pytest.approx(32 * row.num_bytes)
    text = "\n".join(compression_lines(prediction.compressed))
    assert "+1.3 % of loss (measured for 0.84 M parameters)" in text


def test_nothing_compressed_is_not_told(tmp_path: Path) -> None:
    assert compression_lines(predicted(stages=2).compressed) == []
