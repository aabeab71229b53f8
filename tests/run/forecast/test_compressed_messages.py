"""`jaxpipe simulate` counts the outer loop, and says what compression sends and costs."""

import re
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.config import cluster_from, config_of_settings
from jaxpipe.models import num_parameters
from jaxpipe.plan import islands_of
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.forecast.compressed_messages import compression_lines, measured_compressions
from jaxpipe.run.forecast.prediction import Prediction, predict
from jaxpipe.runtime.metrics.records import StepMetrics
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


@pytest.mark.parametrize(("codec", "delivered"), [("none", 4.0), ("int8", 1.015625)])
def test_an_island_of_its_own_says_what_it_delivers(codec: str, delivered: float) -> None:
    quorum = (
        "quorum.server=runs/merge",
        "quorum.islands=4",
        "quorum.every=7",
        f"quorum.codec={codec}",
    )
    prediction = predicted(*quorum, stages=2, replicas=1)
    assert prediction.step_s == predicted(stages=2, replicas=1).step_s
    (row,) = prediction.compressed
    model = config_of_settings(words()).model
    values = num_parameters(model, layers=model.num_layers, embed=True, head=True)
    sent, back = (f"{values * value_bytes / 1e6:,.4g} MB" for value_bytes in (delivered, 4.0))
    assert row.name == "deliveries"
    assert row.sent.startswith("4 islands, every 7 steps")
    assert f"{sent} to the merge server and {back} back" in row.sent
    assert row.seconds is None  # the way to the server is in no cluster file
    assert "published" in str(row.gap)


def test_a_run_shows_how_much_longer_steps_with_a_delivery_took() -> None:
    settings = words("quorum.server=runs/merge", "quorum.islands=4", stages=2, replicas=1)
    config = config_of_settings(settings)
    plan, conditions = plan_from(config), conditions_of(config, cluster_from(config))
    steps = [
        StepMetrics(
            step=number,
            loss=1.0,
            eval_loss=None,
            grad_norm=1.0,
            learning_rate=0.1,
            step_s=step_s,
            tokens_per_s=1.0,
            bubble=0.0,
            sent_bytes=0,
            flops_per_s=1.0,
            outer_bytes=delivered,
        )
        for number, (step_s, delivered) in enumerate([(1.0, None), (1.75, 2_000_000), (1.0, None)])
    ]
    trace = step_breakdown(plan, conditions).trace
    (row,) = measured_compressions(config, plan, conditions, trace, steps)
    assert (row.name, row.seconds) == ("deliveries", 0.75)
    assert row.sent == "4 islands, every 30 steps, 2 MB each time"
    assert measured_compressions(config, plan, conditions, trace, steps[::2]) == ()


def test_only_adapters_are_delivered() -> None:
    quorum = ("quorum.server=runs/merge", "quorum.islands=2")
    whole = predicted(*quorum, stages=2, replicas=1).compressed[0]
    (row,) = predicted(*quorum, "lora.rank=2", stages=2, replicas=1).compressed
    delivered, back = (float(word) for word in re.findall(r"([\d.]+) MB", row.sent))
    assert delivered == back < 0.1 * float(re.findall(r"([\d.]+) MB", whole.sent)[0])


def test_nothing_compressed_is_not_told(tmp_path: Path) -> None:
    assert compression_lines(predicted(stages=2).compressed) == []
