"""`jaxpipe published`: the systems of the literature, and their plans."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxpipe.baselines.systems import COMMANDS, SYSTEMS, System, Way, system_named
from jaxpipe.cli.option_fields import Fills

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


def plan(  # noqa: PLR0913  each is an option of the command line
    system: tyro.conf.Positional[str],
    config: tyro.conf.Positional[Path | None] = None,
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    model: Annotated[str | None, Fills("model.preset")] = None,
    cluster: Annotated[str | None, Fills("plan.cluster")] = None,
    batch: Annotated[int | None, Fills("train.batch")] = None,
    seed: int = 2022,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("plan.toml"),
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Write the plan of a published layout, or of Alpa's inter-operator pass.

    Args:
        system: a system that `jaxpipe published list` shows with `plan`. For `alpa`, `plan.stages`
            and `plan.replicas` may be set.
        config: a TOML file; without one, `--model` and `--batch` say what to plan.
        settings: a change to it, such as `train.remat=full`; may be repeated.
        model: a preset, for example `gpt-xl-24`: `--set model.preset=...`.
        cluster: a cluster of the catalogue, or a TOML file: `--set plan.cluster=...`.
        batch: samples per step, over all replicas: `--set train.batch=...`.
        seed: shuffles the devices of `dtfm-unscheduled`.
        out: the plan file to write, for `jaxpipe train`.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.baselines.autoshard.inter_op import alpa_plan
    from jaxpipe.baselines.published.named_layout import check_heads, named_plan
    from jaxpipe.config import cluster_from, config_of_settings, load_config
    from jaxpipe.plan import write_plan
    from jaxpipe.propose.query import Query
    from jaxpipe.run.folder.output_files import check_output
    from jaxpipe.run.terminal.console import console, train_command
    from jaxpipe.schedule import Remat
    from jaxpipe.simulate import plan_step_s

    check_output("--out", out)
    choice = system_named(system, Way.PLAN, field="SYSTEM")
    shorthands = {"model.preset": model, "plan.cluster": cluster, "train.batch": batch}
    changes = [f"{key}={value}" for key, value in shorthands.items() if value is not None]
    settings = (*changes, *settings)
    if config is None:
        read = config_of_settings(settings)
    else:
        read = load_config(config, (*settings, "plan.file=''"), notice=None)
    remat = read.train.remat or Remat.FULL
    task, conditions = Query(config=read, cluster=cluster_from(read)).task(remat)
    alpa = alpa_plan(task) if choice is System.ALPA else None
    written = named_plan(choice, task, seed=seed) if alpa is None else alpa.plan
    check_heads(written, read.model.num_heads)
    step_s = plan_step_s(written, conditions)
    write_plan(written, task.cluster, out, about=f"{choice}: {step_s:.4g} s a step, simulated.")
    if json_:
        answer = {
            "truth": "simulated",
            "system": choice.value,
            "cluster": task.cluster.name,
            "batch": task.batch,
            "plan": str(out),
            "step_s": step_s,
            "stages": written.num_stages,
            "replicas": written.num_replicas,
            **({} if alpa is None else _alpa_json(alpa)),
        }
        print(json.dumps(answer))
        return 0
    lines = [
        f"{choice}: {written.num_replicas} replicas of {written.num_stages} stages, "
        f"{step_s:.4g} s a step (simulated)",
        *([] if alpa is None else _alpa_lines(alpa, task.cluster)),
    ]
    following = (*settings, f"plan.file={out}", f"train.remat={remat}")
    command = train_command(config or Path("CONFIG"), following)
    console.print("\n".join([*lines, f"\nplan -> {out}\nnext: {command}"]), markup=False)
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
