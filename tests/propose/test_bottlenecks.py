"""The planner's costs of a model with bottlenecks: bytes of each cut, parameters, memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.config import config_from
from jaxpipe.errors import ConfigError
from jaxpipe.interchange.gpt2_config_json import check_is_gpt2
from jaxpipe.models import GptConfig
from jaxpipe.plan.cost import BytesPerParameter, Profile, stage_memory
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.gpt_profile import gpt_profile, with_bottlenecks
from jaxpipe.propose.resolve import plan_from
from jaxpipe.schedule import Remat
from jaxpipe.simulate import plan_step
from tests.runtime.training import tiny_tree

SIZES: dict[str, Any] = {
    "num_layers": 3,
    "dim": 16,
    "num_heads": 2,
    "sequence": 16,
    "vocabulary": 256,
}
PLAIN = GptConfig(**SIZES)
NARROW = GptConfig(**SIZES, bottlenecks=((1, 2),))
TABLES = (2 * 256 + 16 + 2) * 16
"""The parameters behind the bottleneck."""


def profile_of(config: GptConfig) -> Profile:
    return gpt_profile(config, remat=Remat.NONE, flops_per_s=1.0)


def test_the_layers_beside_a_bottleneck_hold_its_parameters():
    before, after = profile_of(PLAIN), profile_of(NARROW)
    more = [
        wide.parameters - plain.parameters
        for plain, wide in zip(before.layers, after.layers, strict=True)
    ]
    assert more == [2 * 16, TABLES, 0]
    assert with_bottlenecks(after, NARROW) == after


@pytest.mark.parametrize("microbatch", [1, 3])
def test_a_message_has_the_rank_where_the_cut_is_at_the_bottleneck(microbatch: int):
    profile = profile_of(NARROW).scaled(microbatch=microbatch)
    whole, narrow = 4 * 16 * 16 * microbatch, 4 * 16 * 2 * microbatch
    assert profile.message_bytes((1, 2)) == (narrow,)
    assert profile.message_bytes((2, 1)) == (whole,)
    assert profile.message_bytes((1, 1, 1)) == (narrow, whole)
    assert profile.message_bytes((3,)) == ()


@pytest.mark.parametrize(("cut", "ratio"), [([1, 2], 8), ([2, 1], 1)])
def test_a_simulated_step_sends_these_bytes(cut: list[int], ratio: int):
    folder = Path("nowhere")
    plan = {"stages": 2, "replicas": 1, "cut": cut}
    tree = tiny_tree(folder, folder, plan=plan, paced={"tflops": 1.0})
    bytes_of = []
    for bottlenecks in ([], [[1, 2]]):
        tree["model"]["bottlenecks"] = bottlenecks
        config = config_from(tree)
        step = plan_step(plan_from(config), conditions_of(config))
        bytes_of.append(step.message_bytes(0, 1))
    assert bytes_of[0] == ratio * bytes_of[1]


def test_memory_has_the_tables_on_the_stage_behind():
    config = config_from(
        tiny_tree(Path("nowhere"), Path("nowhere"), plan={"replicas": 1, "cut": [1, 2]})
    )
    plan, each = plan_from(config), BytesPerParameter()
    before, after = (stage_memory(plan, profile_of(model), each=each) for model in (PLAIN, NARROW))
    more = [wide.parameters - plain.parameters for plain, wide in zip(before, after, strict=True)]
    assert more == [4 * 2 * 16, 4 * TABLES]
    # What enters the second stage is narrow, too.
    assert after[1].activations < before[1].activations


def test_an_export_is_refused_by_name():
    check_is_gpt2(PLAIN)
    with pytest.raises(ConfigError, match=r"`model.bottlenecks` must be empty, not \[\[1, 2\]\]"):
        check_is_gpt2(NARROW)


def test_a_profile_with_a_cut_that_is_none_is_refused():
    with pytest.raises(
        ValueError, match=r"`narrow_bytes` must be .* after 1 to 2 layers, not 8 aft"
    ):
        replace(profile_of(PLAIN), narrow_bytes={3: 8})
