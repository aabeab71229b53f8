"""Profiles of several GPU types in one plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.config import Config
from jaxpipe.errors import ConfigError
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.plan.cost import Part, Profile, flop_profile, write_profile
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.proposal import propose
from jaxpipe.simulate import plan_step
from tests.propose.asked import asked, known

CLUSTER = """
name = "mixed"
[[hosts]]
region = "ohio"
gpu = "A100-80GB"
devices = 2
[[hosts]]
region = "ohio"
gpu = "L4"
devices = 2
[inside_region]
latency_ms = 0.1
bandwidth_gbps = 10
[inside_host]
latency_ms = 0.01
bandwidth_gbps = 100
"""


def profile(*, layer_s: float, head_s: float, flops_per_s: float) -> Profile:
    """Return a profile of the preset `tiny` with two numbers of its own."""
    made = flop_profile(
        num_layers=GptConfig(**load_preset("tiny")).num_layers,
        layer_flop=1.0,
        layer_parameters=1000,
        layer_kept_bytes=1000,
        activation_bytes=1000,
        flops_per_s=flops_per_s,
    )
    layers = tuple(replace(p, forward_s=layer_s, backward_s=2 * layer_s) for p in made.layers)
    return replace(made, layers=layers, head=Part(forward_s=head_s, backward_s=2 * head_s))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "mixed.toml").write_text(CLUSTER)
    # The head is much of a step on one type, and little on the other.
    write_profile(profile(layer_s=0.01, head_s=0.01, flops_per_s=5e13), tmp_path / "a.json")
    write_profile(profile(layer_s=0.03, head_s=0.09, flops_per_s=1e13), tmp_path / "l.json")
    files = [f"A100-80GB={tmp_path / 'a.json'}", f"L4={tmp_path / 'l.json'}"]
    return asked(
        cluster=str(tmp_path / "mixed.toml"),
        batch=16,
        paced={"ideal": "true", "profile_of": files},
        plan={"stages": 2, "replicas": 2},
        train={"remat": "full"},
    )


def test_each_device_takes_the_seconds_of_its_own_profile(config: Config):
    model = GptConfig(**load_preset("tiny"))
    task, conditions = known(config)
    num = model.num_layers
    # Slower by the seconds of the whole model.
    whole = (0.03 * num + 0.09) / (0.01 * num + 0.01)
    assert task.slow.tolist() == pytest.approx([1.0, 1.0, whole, whole])
    plan = propose(config, SearchOptions(budget=1.0)).plan
    step = plan_step(plan, conditions)
    first = 0
    for pipeline in plan.pipelines:
        for stage, (device, layers) in enumerate(zip(pipeline.devices, pipeline.cut, strict=True)):
            layer_s, head_s = (0.01, 0.01) if device < 2 else (0.03, 0.09)
            is_last = stage == pipeline.num_stages - 1
            expected = pipeline.microbatch * (layers * layer_s + head_s * is_last)
            assert step.forward_s[first + stage] == pytest.approx(expected)
        first += pipeline.num_stages
    assert any(device >= 2 for pipeline in plan.pipelines for device in pipeline.devices)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("L4", r"must be a GPU of cluster 'mixed' and its profile, `GPU=FILE`, not 'L4'"),
        ("T4=a.json", "its GPUs are A100-80GB, L4"),
    ],
)
def test_what_is_no_gpu_of_the_cluster_is_refused(config: Config, word: str, words: str):
    with pytest.raises(ConfigError, match=words):
        propose(replace(config, paced=replace(config.paced, profile_of=(word,))))


def test_profiles_of_two_models_are_refused(config: Config, tmp_path: Path):
    other = profile(layer_s=0.03, head_s=0.09, flops_per_s=1e13)
    write_profile(replace(other, layers=other.layers[:1]), tmp_path / "l.json")
    with pytest.raises(ConfigError, match=r"that of `paced\.profile_of` L4"):
        propose(config)


def test_one_profile_and_several_exclude_each_other(config: Config):
    with pytest.raises(ValueError, match="remove one of them"):
        replace(config.paced, profile="a.json")
