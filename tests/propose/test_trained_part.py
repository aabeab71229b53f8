"""A plan for adapters: fewer gradients and moments, one copy more of the parameters."""

from dataclasses import replace
from math import prod

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.config import config_from
from jaxpipe.errors import ConfigError
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.finetune.tuned_model import tuned
from jaxpipe.models import DTYPE_BYTES, build_model, preset_config
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.propose.trained_part import TrainedPart
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.runtime.checkpoint import shapes
from jaxpipe.runtime.stage.trained import is_trained
from jaxpipe.schedule import Remat

MODEL = preset_config("llama-tiny")
WHOLE = gpt_profile(MODEL, remat=Remat.FULL, flops_per_s=1e12)


def test_adapters_add_parameters_and_leave_few_to_train() -> None:
    rank = 4
    part = TrainedPart(lora=LoraConfig(rank=rank, targets=("attention.query",)))
    found = part.profile(WHOLE, MODEL)
    # Source: Hu et al. 2021, section 4.1: A has dim x rank values, and B rank x dim.
    adapter = 2 * MODEL.dim * rank
    for before, layer in zip(WHOLE.layers, found.layers, strict=True):
        assert layer.num_gradients == adapter
        assert layer == replace(before, parameters=before.parameters + adapter, trained=adapter)
    assert (found.embed.num_gradients, found.head.num_gradients) == (0, 0)
    assert found.embed.parameters == WHOLE.embed.parameters
    each = bytes_each(MODEL)
    copy = DTYPE_BYTES[MODEL.compute_dtype]
    assert part.bytes_each(each, MODEL) == replace(each, copy=copy)


def test_a_frozen_part_has_no_gradients() -> None:
    found = TrainedPart(frozen=("embed.*", "head.*")).profile(WHOLE, MODEL)
    assert (found.embed.num_gradients, found.head.num_gradients) == (0, 0)
    assert [each.num_gradients for each in found.layers] == [
        each.parameters for each in WHOLE.layers
    ]
    assert TrainedPart().profile(WHOLE, MODEL) is WHOLE


@given(
    frozen=st.lists(
        st.sampled_from(
            ["embed.*", "head.*", "blocks.0.*", "blocks.[1-2].mlp.*", "*.attention.*", "*scale"]
        ),
        min_size=1,
        unique=True,
    )
)
@settings(max_examples=15)
def test_what_changes_is_counted_layer_by_layer(frozen: list[str]) -> None:
    model = tuned(build_model(MODEL), lora=LoraConfig(), frozen=tuple(frozen))
    found = TrainedPart(frozen=tuple(frozen)).profile(WHOLE, MODEL)
    layers = range(MODEL.num_layers)
    tree = jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=layers, embed=True, head=True)
    )
    sizes = {name: prod(shape) for name, shape in shapes(tree, first_layer=0).items()}
    for number, layer in enumerate(found.layers):
        of_layer = (name for name in sizes if name.startswith(f"blocks.{number}."))
        assert layer.num_changing == sum(sizes[n] for n in of_layer if is_trained(model, n))
        assert layer.num_changing <= layer.num_gradients
    for part, name in ((found.embed, "embed."), (found.head, "head.")):
        of_part = (n for n in sizes if n.startswith(name) and is_trained(model, n))
        assert part.num_changing == sum(sizes[n] for n in of_part)


def test_adapters_and_patterns_exclude_each_other() -> None:
    both = TrainedPart(lora=LoraConfig(rank=2), frozen=("embed.*",))
    with pytest.raises(ConfigError, match=r"`lora.rank` is 2, and `train.frozen` embed\.\*"):
        both.profile(WHOLE, MODEL)


def test_a_step_over_slow_links_is_shorter_with_adapters() -> None:
    tree = {
        "run": {"folder": "run"},
        "data": {"folder": "data"},
        # A tied embedding without gradients: its all-reduce has nothing to carry.
        "model": {"preset": "gpt-xl-24", "compute_dtype": "float16"},
        "plan": {
            "cluster": "case5-worldwide",
            "stages": 8,
            "replicas": 8,
            "all_reduce": "sharded",
            "microbatch": 1,
            "schedule": "1f1b",
        },
        "train": {"batch": 64, "remat": "full"},
    }
    whole = simulate_step(config_from(tree))
    tuned = simulate_step(config_from({**tree, "lora": {"rank": 8}}))
    seconds = [max(span.end_s for span in trace.spans) for trace in (whole, tuned)]
    computes = [
        sum(span.end_s - span.start_s for span in trace.spans if span.name == "backward")
        for trace in (whole, tuned)
    ]
    assert computes[0] == pytest.approx(computes[1], rel=1e-9)
    assert seconds[1] < seconds[0]
