"""Each row of the table: the two settings are refused together, and either is accepted alone."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.config import check_plan_fits, config_from
from jaxpipe.config.compatibility import EXCLUSIONS, Exclusion, check_compatible
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from tests.runtime.training import Tree, tiny_tree

NOWHERE = Path("nowhere")


def _with_groups(plan: Plan) -> Plan:
    """Return a plan in which every rank has two devices."""
    pipelines = tuple(
        replace(pipeline, peers=tuple((8 + device,) for device in pipeline.devices))
        for pipeline in plan.pipelines
    )
    return replace(plan, pipelines=pipelines)


@dataclass(frozen=True, slots=True)
class Example:
    """Sections of a configuration that choose a setting, and what the plan file would add."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    change: Callable[[Plan], Plan] | None = None


_BFLOAT16 = {"compute_dtype": "bfloat16"}
EXAMPLES = {
    "`run.compute` = paced": Example({"run": {"compute": "paced"}}),
    "`run.survive` = shrink": Example({"run": {"survive": "shrink"}}),
    "`run.transport` = nccl": Example({"run": {"transport": "nccl"}}),
    "`run.transport` = shaped": Example({"run": {"transport": "shaped"}}),
    "`run.trackers` given": Example({"run": {"trackers": ["wandb"]}}),
    "`outer.islands` > 0": Example({"outer": {"islands": 1, "every": 2}}),
    "`outer.islands` > 1": Example({"outer": {"islands": 2, "every": 2}}),
    "`outer.islands` = 1": Example({"outer": {"islands": 1, "every": 2}}),
    "`outer.codec` ≠ none": Example({"outer": {"islands": 2, "every": 2, "codec": "int8"}}),
    "`outer.eager` = true": Example({"outer": {"islands": 2, "every": 2, "eager": True}}),
    "`outer.delay` > 0": Example({"outer": {"islands": 2, "every": 2, "delay": 1}}),
    "`outer.local_fraction` > 0": Example(
        {"outer": {"islands": 2, "every": 2, "local_fraction": 0.5}}
    ),
    "`model.param_dtype` ≠ float32": Example({"model": {"param_dtype": "bfloat16"}}),
    "`lora.rank` > 0": Example({"lora": {"rank": 2}}),
    "`train.frozen` given": Example({"train": {"frozen": ["embed.*"]}}),
    "`mesh` of several devices": Example({"mesh": {"tensor": 2}}),
    "`mesh.context` > 1": Example({"mesh": {"context": 2}}),
    "`mesh.sequence_parallel` = true": Example({"mesh": {"tensor": 2, "sequence_parallel": True}}),
    "`plan.file` with several devices per rank": Example(change=_with_groups),
    "`plan.all_reduce` = library": Example({"plan": {"all_reduce": "library"}}),
    "`plan.all_reduce` without far messages": Example({"plan": {"all_reduce": "ring"}}),
    "`plan.cuts` unequal": Example({"plan": {"cuts": [[1, 2], [2, 1]]}}),
    "`plan.schedule` with a split backward": Example({"plan": {"schedule": "zb-h1"}}),
    "`optimizer.sharded` = true": Example({"optimizer": {"sharded": True}}),
    "`optimizer.master_weights` = true": Example(
        {"model": {"param_dtype": "bfloat16"}, "optimizer": {"master_weights": True}}
    ),
    "`model.param_dtype` = float32": Example({"model": {"param_dtype": "float32"}}),
    "`optimizer.name` = adafactor": Example({"optimizer": {"name": "adafactor"}}),
    "`optimizer.name` = muon": Example({"optimizer": {"name": "muon"}}),
    "`comm.boundary` ≠ none": Example({"comm": {"boundary": "int8"}}),
    "`comm.gradients` ≠ none": Example({"comm": {"gradients": "int8"}}),
    "`data.pack` = true": Example({"data": {"pack": True}}),
    "`model.attention` = flash": Example({"model": {"attention": "flash", **_BFLOAT16}}),
    "`model.compute_dtype` = float32": Example({"model": {"compute_dtype": "float32"}}),
    "`model.experts` > 0": Example({"model": {"experts": 2}}),
    "`model.classes` > 0": Example({"model": {"classes": 2, "tied": False, "causal": False}}),
    "`model.dropout` > 0": Example({"model": {"dropout": 0.1}}),
    "`model.causal` = true": Example({"model": {"causal": True}}),
}


def _ids(row: Exclusion) -> str:
    return f"{row.first} and {row.second}"


@pytest.mark.parametrize("row", EXCLUSIONS, ids=_ids)
def test_settings_that_exclude_each_other_are_refused_with_their_row(row: Exclusion) -> None:
    # The second wins where both have the same field.
    examples = EXAMPLES[str(row.first)], EXAMPLES[str(row.second)]
    with pytest.raises(ConfigError) as refusal:
        _check(*examples)
    message = str(refusal.value)
    assert message.startswith(f"`{row.first.field}` (")
    assert f" and `{row.second.field}` (" in message
    assert message.endswith(f") exclude each other: {row.why}; {row.fix}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_setting_alone_is_accepted(name: str) -> None:
    config, plan = _check(EXAMPLES[name])
    settings = [each for row in EXCLUSIONS for each in (row.first, row.second)]
    chosen = [each for each in settings if str(each) == name]
    assert chosen
    assert all(each.is_chosen(config, plan) for each in chosen)


def test_settings_of_the_plan_are_free_without_one() -> None:
    tree = tiny_tree(NOWHERE, NOWHERE, comm={"gradients": "int8"}, plan={"all_reduce": "ring"})
    check_compatible(config_from(tree))


def test_the_table_names_each_pair_once() -> None:
    pairs = [frozenset((str(row.first), str(row.second))) for row in EXCLUSIONS]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)


def _check(*examples: Example) -> tuple[Any, Plan]:
    tree: Tree = tiny_tree(NOWHERE, NOWHERE, model={"dropout": 0.0, "num_heads": 4})
    for example in examples:
        tree = {
            name: {**tree.get(name, {}), **example.sections.get(name, {})}
            for name in {**tree, **example.sections}
        }
    config = config_from(tree)
    plan = plan_from(config)
    for example in examples:
        if example.change is not None:
            plan = example.change(plan)
    check_plan_fits(config, plan)
    return config, plan
