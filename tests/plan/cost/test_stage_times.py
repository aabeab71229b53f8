"""Profiles of whole stages: the measured seconds, divided among counted layers."""

import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.plan.cost import Profile, Software, flop_profile, read_profile
from jaxpipe.plan.cost.stage_times import StageTimes, TimedStage, profile_of_stages

SECONDS = st.floats(1e-3, 10)


def model(num_layers: int) -> Profile:
    return flop_profile(
        num_layers=num_layers,
        layer_flop=4.0,
        layer_parameters=10,
        layer_kept_bytes=7,
        activation_bytes=3,
        embed_parameters=5,
        head_parameters=2,
        head_flop=1.0,
        flops_per_s=1.0,
    )


STAGES = st.lists(
    st.builds(
        TimedStage,
        layers=st.integers(1, 3),
        forward_s=SECONDS,
        backward_s=st.floats(5, 10),
        backward_input_s=SECONDS,
        backward_weight_s=SECONDS,
        update_s=SECONDS,
    ),
    min_size=1,
    max_size=4,
)


@given(stages=STAGES, microbatch=st.integers(1, 4))
def test_stages_of_the_measured_cut_take_the_measured_seconds(
    stages: list[TimedStage], microbatch: int
):
    cut = tuple(stage.layers for stage in stages)
    counted = model(sum(cut))
    times = StageTimes(device="a core", microbatch=microbatch, stages=tuple(stages))
    profile = profile_of_stages(times, counted)
    assert profile.microbatch == microbatch
    for number, stage in enumerate(stages):
        part, before = profile.stage(cut, number), counted.stage(cut, number)
        for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s"):
            assert getattr(part, name) == pytest.approx(getattr(stage, name)), name
        assert (part.parameters, part.kept_bytes) == (
            before.parameters,
            before.kept_bytes * microbatch,
        )
        assert profile.update_s(cut, number, tied=True) == pytest.approx(stage.update_s)


def test_layers_of_another_cut_keep_their_seconds():
    stages = (TimedStage(layers=1, forward_s=2.0, backward_s=4.0),) * 2
    profile = profile_of_stages(StageTimes(device="x", microbatch=1, stages=stages), model(2))
    assert [layer.forward_s for layer in profile.layers] == [2.0, pytest.approx(1.6)]
    assert profile.stage((2,), 0).forward_s == pytest.approx(4.0)


def content(**changes: object) -> dict[str, object]:
    stage = {"layers": 1, "forward_s": 1, "backward_s": 2}
    return {"device": "x", "microbatch": 1, "stages": [stage, stage], **changes}


def test_a_file_may_say_how_messages_leave(tmp_path: Path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content(software={"eager_bytes": 0, "posts_ahead": True})))
    profile = read_profile(path, counted=model(2))
    assert profile.software == replace(Software(), eager_bytes=0.0, posts_ahead=True)
    assert list(accumulate(layer.backward_s for layer in profile.layers))[-1] == pytest.approx(3.6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stages": []}, "`stages` not empty, has 0"),
        ({"microbatch": 0}, r"`microbatch` \(0\) must be at least 1"),
        ({"layers": []}, "unknown field `layers`"),
        (
            {"stages": [{"layers": 3, "forward_s": 1, "backward_s": 2}]},
            "`stages` have 3 layers, 3 together, and the model has 2; measure this model",
        ),
        (
            {"stages": [{"layers": 2, "forward_s": -1, "backward_s": 2}]},
            "`forward_s` must not be negative, is -1",
        ),
        (
            {"stages": [{"layers": 2, "forward_s": 0, "backward_s": 0}]},
            "`stages` must take some seconds",
        ),
        (
            {"stages": [{"layers": 0, "forward_s": 0, "backward_s": 1}]},
            "`layers` must be at least 1, is 0",
        ),
        (
            {"stages": [{"layers": 2, "forward_s": 1, "backward_s": 1, "backward_input_s": -1}]},
            "`backward_input_s` must not be negative",
        ),
        ({"software": {"eager_bytes": -1}}, "`eager_bytes` must not be negative"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, changes: dict[str, object], words: str):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content(**changes)))
    with pytest.raises(PlanError, match=words):
        read_profile(path, counted=model(2))


def test_stages_need_a_model(tmp_path: Path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content()))
    with pytest.raises(PlanError, match="`stages` are of a model, which is not given here"):
        read_profile(path)
