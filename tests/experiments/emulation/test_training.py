"""The simulation of a run starts from the computes of its trace, and adds the links."""

from pathlib import Path

import pytest

from experiments.emulation.training import simulated_s
from jaxpipe.config import load_config
from jaxpipe.trace import Lane, Span

CONFIG = load_config(Path("experiments/emulation/model.toml"), [])
FORWARD_S, BACKWARD_S, MICROBATCHES, STAGES = 0.5, 1.0, 4, 2


def span(name: str, stage: int, *, seconds: float) -> Span:
    return Span(
        rank=stage,
        lane=Lane.COMPUTE,
        name=name,
        start_s=1.0,
        end_s=1.0 + seconds,
        step=1,
        stage=stage,
        microbatch=0,
    )


def test_equal_stages_take_the_closed_form_and_what_links_add():
    spans = tuple(
        span(name, stage, seconds=seconds)
        for stage in range(STAGES)
        for name, seconds in (("forward", FORWARD_S), ("backward", BACKWARD_S))
    )
    computes_s = (MICROBATCHES + STAGES - 1) * (FORWARD_S + BACKWARD_S)
    times_s = [simulated_s(CONFIG, spans, scale=scale) for scale in (1e-6, 1.0, 4.0)]
    assert times_s[0] == pytest.approx(computes_s, rel=1e-3)
    assert times_s == sorted(times_s)
    assert times_s[2] - times_s[0] == pytest.approx(4 * (times_s[1] - times_s[0]), rel=0.05)
