"""`jaxpipe published`: the systems of the literature, and their plans."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxpipe.baselines.systems import COMMANDS, SYSTEMS, System, Way, system_named
from jaxpipe.propose.request import PlanRequest
from jaxpipe.runtime.config import Remat

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from jaxpipe.baselines.autoshard.inter_op import AlpaPlan
    from jaxpipe.topo import Cluster


def list_systems(*, json_: Annotated[bool, tyro.conf.arg(name="json")] = False) -> int:
    """List the systems of the literature, their papers, and what runs them here.

    Args:
        json_: print one JSON object and nothing else.
    """
    if json_:
        rows = {
            system.value: {
                "about": facts.about,
                "paper": facts.paper,
                "ways": [way.value for way in Way if way in facts.ways],
            }
            for system, facts in SYSTEMS.items()
        }
        print(json.dumps(rows))
        return 0
    for system, facts in SYSTEMS.items():
        ways = ", ".join(way.value for way in Way if way in facts.ways)
        paper = f" ({facts.paper})" if facts.paper else ""
        print(f"{system:<25}{ways:<34}{facts.about}{paper}")
    print("\n" + "\n".join(f"{way:<10}{command} NAME" for way, command in COMMANDS.items()))
    print(f"{Way.PREDICT:<10}the cost model of `jaxpipe autoshard duplex`, from Python")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPlanOptions:
    """The model and the devices of a published plan."""

    cluster: str
    """A cluster of the catalogue, for example `case5-worldwide`, or a TOML file."""
    model: str
    """A preset, for example `gpt-xl-24`."""
    batch: int
    """Samples per step, over all replicas."""
    stages: int | None = None
    """For `alpa`, the number of stages; chosen by default."""
    replicas: int | None = None
    """For `alpa`, the number of replicas; chosen by default."""
    remat: Remat = Remat.FULL
    """Rematerialisation of each layer: `none`, `dots` or `full`."""
    tflops: float | None = None
    """TFLOP/s of devices whose speed the cluster does not state."""
    seed: int = 2022
    """Shuffles the devices of `dtfm-unscheduled`."""


def plan(
    system: tyro.conf.Positional[str],
    options: tyro.conf.OmitArgPrefixes[PublishedPlanOptions],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("plan.toml"),
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Write the plan of a published layout, or of Alpa's inter-operator pass.

    Args:
        system: a system that `jaxpipe published list` shows with `plan`.
        options: the model and the devices.
        out: the plan file to write, for `jaxpipe train`.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.baselines.autoshard.inter_op import alpa_plan
    from jaxpipe.baselines.published.named_layout import check_heads, named_plan
    from jaxpipe.plan import write_plan
    from jaxpipe.propose.proposal import preset_model, task_and_conditions
    from jaxpipe.run.console import console, train_command
    from jaxpipe.run.output_files import check_output
    from jaxpipe.simulate import plan_step_s

    check_output("--out", out)
    chosen = system_named(system, Way.PLAN, field="SYSTEM")
    request = PlanRequest(
        cluster=options.cluster,
        model=options.model,
        batch=options.batch,
        stages=options.stages,
        replicas=options.replicas,
        remat=options.remat,
        tflops=options.tflops,
    )
    model = preset_model(request)
    task, conditions = task_and_conditions(request, model)
    alpa = alpa_plan(task) if chosen is System.ALPA else None
    written = named_plan(chosen, task, seed=options.seed) if alpa is None else alpa.plan
    check_heads(written, model.num_heads)
    step_s = plan_step_s(written, conditions)
    about = (
        f"{chosen} for {options.model}, batch {options.batch}: {step_s:.4g} s a step, simulated."
    )
    write_plan(written, task.cluster, out, about=about)
    if json_:
        answer = {
            "truth": "simulated",
            "system": chosen.value,
            "cluster": options.cluster,
            "model": options.model,
            "batch": options.batch,
            "plan": str(out),
            "step_s": step_s,
            "stages": written.num_stages,
            "replicas": written.num_replicas,
            **({} if alpa is None else _alpa_json(alpa)),
        }
        print(json.dumps(answer))
        return 0
    lines = [
        f"{chosen}: {written.num_replicas} replicas of {written.num_stages} stages, "
        f"{step_s:.4g} s a step (simulated)",
        *([] if alpa is None else _alpa_lines(alpa, task.cluster)),
    ]
    settings = (
        f"plan.file={out}",
        f"plan.cluster={options.cluster}",
        f"train.batch={options.batch}",
    )
    following = train_command(Path("CONFIG"), (*settings, f"train.remat={options.remat}"))
    console.print("\n".join([*lines, f"\nplan -> {out}\nnext: {following}"]), markup=False)
    return 0


def _alpa_lines(alpa: "AlpaPlan", cluster: "Cluster") -> list[str]:
    """Draw the stages of Alpa's inter-operator pass, and what unequal submeshes would cost."""
    staged = alpa.staged
    lines = [f"Alpa's inter-operator pass: {staged.step_s:.4g} s a step (predicted)"]
    for number, stage in enumerate(staged.stages):
        first, last = (cluster.devices[stage.devices[end]].name for end in (0, -1))
        names = first if len(stage.devices) == 1 else f"{first} .. {last}"
        lines.append(
            f"  stage {number:<4}layers {f'{stage.layers.start}-{stage.layers.stop - 1}':<8}"
            f"{stage.cost.seconds:10.4g} s a microbatch   {len(stage.devices)} devices: {names}"
        )
    if alpa.uneven is not None:
        sizes = " ".join(str(len(stage.devices)) for stage in alpa.uneven.stages)
        lines.append(
            f"  submeshes of different sizes, which this plan cannot have: "
            f"{alpa.uneven.step_s:.4g} s a step (predicted), layers "
            f"{' '.join(map(str, alpa.uneven.cut))} on {sizes} devices"
        )
    return lines


def _alpa_json(alpa: "AlpaPlan") -> dict[str, Any]:
    uneven = alpa.uneven
    return {
        "alpa_seconds": alpa.staged.step_s,
        "alpa_uneven": None
        if uneven is None
        else {
            "seconds": uneven.step_s,
            "cut": uneven.cut,
            "submeshes": [[stage.devices.start, stage.devices.stop] for stage in uneven.stages],
        },
    }
