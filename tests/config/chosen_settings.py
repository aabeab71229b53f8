"""An example of each setting that the table of compatibility has, and what a run makes of some."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, check_plan_fits, config_from
from jaxpipe.config.compatibility import EXCLUSIONS, Setting
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.schedule import Op
from tests.runtime.training import Tree, tiny_tree

NOWHERE = Path("nowhere")


def _with_groups(plan: Plan) -> Plan:
    """Return a plan in which every rank has two devices."""
    pipelines = tuple(
        replace(pipeline, peers=tuple((8 + device,) for device in pipeline.devices))
        for pipeline in plan.pipelines
    )
    return replace(plan, pipelines=pipelines)


def _splits_backward(plan: Plan) -> bool:
    replicas = range(plan.num_replicas)
    programs = (program for n in replicas for program in plan.train_schedule(replica=n))
    return any(instruction.op is Op.BACKWARD_INPUT for one in programs for instruction in one)


@dataclass(frozen=True, slots=True)
class Example:
    """Sections of a configuration that choose a setting, and what the plan file would add."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    change: Callable[[Plan], Plan] | None = None


_BFLOAT16 = {"compute_dtype": "bfloat16"}
EXAMPLES = {
    "`run.compute` = paced": Example({"run": {"compute": "paced"}, "paced": {"tflops": 1.0}}),
    "`run.survive` = shrink": Example({"run": {"survive": "shrink"}}),
    "`run.transport` = nccl": Example({"run": {"transport": "nccl"}}),
    "`run.transport` = shaped": Example({"run": {"transport": "shaped"}}),
    "`run.trackers` given": Example({"run": {"trackers": ["tensorboard"]}}),
    "`outer.islands` > 0": Example({"outer": {"islands": 1, "every": 2}}),
    "`outer.islands` > 1": Example({"outer": {"islands": 2, "every": 2}}),
    "`outer.islands` = 1": Example({"outer": {"islands": 1, "every": 2}}),
    "`quorum.server` given": Example({"quorum": {"server": "merge.json"}}),
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
    "`model.attention` = flash": Example(
        {"model": {"attention": "flash", "dim": 32, **_BFLOAT16}}  # heads of 8, as its kernel takes
    ),
    "`model.compute_dtype` = float32": Example({"model": {"compute_dtype": "float32"}}),
    "`model.experts` > 0": Example({"model": {"experts": 2}}),
    "`model.classes` > 0": Example({"model": {"classes": 2, "tied": False, "causal": False}}),
    "`model.dropout` > 0": Example({"model": {"dropout": 0.1}}),
    "`model.causal` = true": Example({"model": {"causal": True}}),
    "`model.bottlenecks` given": Example({"model": {"bottlenecks": [[1, 4]]}}),
}


EXCLUDE_NONE = (
    Setting(
        "comm.boundary",
        f"≠ {CodecKind.NONE}",
        shown=lambda config, _: config.comm.boundary,
        is_chosen=lambda config, _: config.comm.boundary is not CodecKind.NONE,
    ),
    Setting(
        "plan.schedule",
        "with a split backward",
        shown=lambda _, plan: plan and plan.schedule_name,
        is_chosen=lambda _, plan: plan is not None and _splits_backward(plan),
    ),
)
"""Settings that are tried with all others, and have no row in the table."""
SETTINGS = {
    str(setting): setting
    for setting in (*(s for row in EXCLUSIONS for s in (row.first, row.second)), *EXCLUDE_NONE)
}


def checked(
    *examples: Example, run: Path = NOWHERE, dataset: Path = NOWHERE
) -> tuple[Config, Plan]:
    """Return a configuration with these settings and its plan, which fit each other.

    Raises:
        ConfigError: two of the settings exclude each other.
    """
    tree: Tree = tiny_tree(run, dataset, model={"dropout": 0.0, "num_heads": 4})
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
