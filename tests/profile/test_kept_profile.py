"""The profile of a model on this machine: measured once, kept, and read without jax."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.models import GptConfig, num_parameters, preset_config
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.profile import kept_profile as module
from jaxpipe.profile.kept_profile import kept_profile, mean_tree, measured_profile
from jaxpipe.profile.measuring_process import MeasuredApart
from jaxpipe.profile.profile_task import ProfileTask, task_from
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig, OptimizerName
from jaxpipe.schedule.remat import Remat

TINY = GptConfig(num_layers=2, dim=16, num_heads=2, sequence=8, vocabulary=32)
TASK = ProfileTask(model=TINY, microbatches=(2,))
LAYER = Part(forward_s=1.0, backward_s=2.0, backward_input_s=1.5, backward_weight_s=1.0)
PROFILE = Profile(
    device="this machine",
    flops_per_s=1e9,
    microbatch=2,
    activation_bytes=64,
    embed=Part(),
    layers=(LAYER,) * 2,
    head=Part(),
)


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        ProfileTask(model=preset_config("llama-tiny"), lora=LoraConfig(rank=4)),
        replace(TASK, frozen=("embed*",), optimizer=OptimizerConfig(name=OptimizerName.LION)),
    ],
)
def test_a_task_travels_as_plain_data(task: ProfileTask):
    assert task_from(task.fields()) == task


def test_a_profile_is_kept_by_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    monkeypatch.setattr(
        module, "measure_apart", lambda *_, **__: MeasuredApart(value=[PROFILE, PROFILE])
    )
    assert kept_profile(TASK, environment) is None
    assert measured_profile(TASK, environment=environment).value == PROFILE
    assert kept_profile(TASK, environment) == PROFILE
    # The learning rate changes no seconds; all else does.
    rate = OptimizerConfig(learning_rate=0.5)
    assert kept_profile(replace(TASK, optimizer=rate), environment) == PROFILE
    for other in (
        replace(TASK, model=replace(TINY, sequence=4)),
        replace(TASK, microbatches=(1,)),
        replace(TASK, remat=Remat.FULL),
        replace(TASK, lora=LoraConfig(rank=2)),
        replace(TASK, optimizer=OptimizerConfig(name=OptimizerName.SGD)),
    ):
        assert kept_profile(other, environment) is None


def test_a_profile_beside_other_work_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    measured = MeasuredApart(value=[PROFILE], share=0.5)
    monkeypatch.setattr(module, "measure_apart", lambda *_, **__: measured)
    assert measured_profile(TASK, environment=environment) == MeasuredApart(
        value=PROFILE, share=0.5
    )
    assert kept_profile(TASK, environment) is None


def test_means_are_taken_over_the_cores():
    slow = replace(PROFILE, layers=(replace(LAYER, forward_s=3.0),) * 3)
    trees = [{"forward_s": p.layers[0].forward_s, "parameters": 7} for p in (PROFILE, slow)]
    assert mean_tree(trees) == {"forward_s": 2.0, "parameters": 7}


def test_microbatches_have_samples():
    with pytest.raises(ConfigError, match=r"`microbatches` must be at least 1 each, not \(0,\)"):
        replace(TASK, microbatches=(0,))


def test_the_kept_profile_needs_no_jax():
    code = (
        "import sys; from jaxpipe.profile.kept_profile import kept_profile; "
        "from jaxpipe.profile.profile_task import ProfileTask; "
        "from jaxpipe.models import preset_config; "
        "kept_profile(ProfileTask(model=preset_config('tiny')), {}); "
        "print('jax' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.slow
def test_a_small_model_with_adapters_is_measured():
    details: list[str] = []
    task = replace(TASK, microbatches=(1, 2), lora=LoraConfig(rank=2))
    profile = measured_profile(task, keep=False, observe=details.append).value
    total = len(details)
    assert [detail.partition(":")[0] for detail in details] == [
        f"{n} of {total}" for n in range(1, total + 1)
    ]
    assert (profile.microbatch, profile.sizes[0].microbatch) == (1, 2)
    assert len(profile.layers) == TINY.num_layers
    layer = profile.layers[0]
    assert min(layer.forward_s, layer.backward_s, layer.earlier_s, layer.later_s) > 0
    whole = num_parameters(TINY, layers=1, embed=False, head=False)
    assert layer.parameters >= whole
    assert layer.num_gradients < whole
    assert profile.scaled(microbatch=2).layers == profile.sizes[0].layers
    assert profile.scaled(microbatch=4).microbatch == 4
