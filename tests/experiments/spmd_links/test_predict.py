"""Predictions agree with what they start from, and add what the link takes."""

from pathlib import Path

import pytest

from experiments.spmd_links.predict import predicted_s
from jaxpipe.baselines.compare.measured import MeasuredStep, MeasuredSystem, RankPart
from jaxpipe.baselines.systems import System

CONFIG = Path("experiments/spmd_links/model.toml")


def measured(system: System, *, sent_bytes: float) -> MeasuredSystem:
    part = RankPart(compile_s=1.0, peak_bytes=1, sent_bytes=sent_bytes, slow_bytes=sent_bytes)
    return MeasuredSystem(
        system=system,
        strategy="",
        tokens_per_step=1024,
        steps=tuple(MeasuredStep(step=n, loss=1.0, step_s=s) for n, s in enumerate((9.0, 0.25), 1)),
        ranks=(part, part),
        is_counted=system is not System.PIPELINE,
        search_s=None,
    )


def test_collectives_are_waited_for():
    run = measured(System.DDP, sent_bytes=25e6)
    assert predicted_s(run, CONFIG, gbps=0.4, unshaped_gbps=20.0) == pytest.approx(0.75)


def test_the_simulated_pipeline_meets_its_own_measurement_and_slows_down():
    run = measured(System.PIPELINE, sent_bytes=1e6)
    seconds = [predicted_s(run, CONFIG, gbps=g, unshaped_gbps=20.0) for g in (20.0, 1.0, 0.1)]
    assert seconds[0] == pytest.approx(0.25, rel=1e-6)
    assert seconds == sorted(seconds)
