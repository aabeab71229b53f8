"""`jaxpipe plan`: searches the fastest plan for a model on a cluster."""

import json
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxpipe.cli.plan_codecs import codec_json, codec_lines, codec_settings
from jaxpipe.cli.plan_fleet import fleet_json, fleet_lines
from jaxpipe.cli.plan_pareto import check_pareto, draw_pareto
from jaxpipe.propose.request import OuterQuestion, PlanRequest

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from collections.abc import Callable, Iterable

    from jaxpipe.autoshard.inter_op import AlpaPlan
    from jaxpipe.models import ModelConfig
    from jaxpipe.plan import Plan
    from jaxpipe.propose.outer_advice import OuterAdvice
    from jaxpipe.propose.proposal import Proposal
    from jaxpipe.propose.worth import Worth
    from jaxpipe.runtime.config import Remat
    from jaxpipe.topo import Cluster

_FEW_RANKS = 16
"""Up to this many ranks are drawn one by one."""


def plan(
    request: tyro.conf.OmitArgPrefixes[PlanRequest],
    *,
    config: Path | None = None,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("plan.toml"),
    pareto: Path | None = None,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Plan a training run, and write a plan file for `jaxpipe train`.

    Args:
        request: the model, the cluster and the search.
        config: a configuration to plan for, instead of `--model`: its model, and what else it says
            where an option does not.
        settings: a change to it, such as `train.batch=64`; may be repeated.
        out: the file to write.
        pareto: a picture to draw of the plans that no other beats in seconds and dollars, or in
            seconds and energy, `.png`, `.svg` or `.pdf`; for an objective or a limit of these.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.plan import write_plan
    from jaxpipe.run.console import console, train_command
    from jaxpipe.run.output_files import check_output
    from jaxpipe.run.progress import search_progress

    check_output("--out", out)
    if pareto is not None:
        check_pareto(request, pareto)
    model, changes = None, _changes(request, out)
    if config is not None or settings:
        request, model = _configured(request, config, settings)
    elif request.remat is None and not request.search_remat:
        changes.append("train.remat=full")  # unlike the default of a configuration
    with search_progress(
        "searching a plan", of="plans simulated", budget_s=request.budget
    ) as observe:
        found = _found_with_remat(request, model, observe=observe)
    if found.remat is not None:
        changes.append(f"train.remat={found.remat}")
    changes += found.settings
    about = (
        f"Planned for {request.model}, batch {request.batch}, objective {request.objective}: "
        f"{found.step_s:.4g} s a step, {found.truth}"
        f"{', with ' if found.settings else ''}{', '.join(found.settings)}."
    )
    write_plan(found.plan, found.cluster, out, about=about)
    if pareto is not None:
        found.draw(pareto)
    if json_:
        print(json.dumps(found.as_json(out)))
        return 0
    console.print("\n".join(found.lines()), markup=False)
    following = train_command(config or Path("CONFIG"), (*settings, *changes))
    console.print(f"\nplan -> {out}\nnext: {following}", markup=False)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A plan, and how to print it."""

    plan: "Plan"
    cluster: "Cluster"
    step_s: float
    truth: str
    as_json: "Callable[[Path], dict[str, Any]]"
    lines: "Callable[[], list[str]]"
    draw: "Callable[[Path], None]"
    cost: float
    remat: "Remat | None" = None
    settings: tuple[str, ...] = ()


def _found_with_remat(
    request: PlanRequest, model: "ModelConfig | None", *, observe: "Callable[[int], None]"
) -> _Found:
    """Return the best plan, of all rematerialisations if the request says so."""
    from jaxpipe.propose.remat_search import best_remat

    find = partial(_found, model=model, observe=observe)
    if not request.search_remat:
        return find(request)
    remat, found, trials = best_remat(
        request, find, cost=lambda each: each.cost, step_s=lambda each: each.step_s
    )
    line = f"rematerialisation {remat}, of {', '.join(map(str, trials))} (simulated)"
    in_json = {"remat": remat.value, "remats": {each.remat.value: each.step_s for each in trials}}
    return replace(
        found,
        remat=remat,
        lines=lambda: [*found.lines(), line],
        as_json=lambda out: {**found.as_json(out), **in_json},
    )


def _found(
    request: PlanRequest, model: "ModelConfig | None", *, observe: "Callable[[int], None]"
) -> _Found:
    from jaxpipe.propose.fleet_proposal import MOST_SIMULATED, propose_fleet
    from jaxpipe.propose.proposal import preset_model, propose_for, task_and_conditions

    model = model or preset_model(request)
    task, conditions = task_and_conditions(request, model)
    if len(task.cluster) > MOST_SIMULATED:
        fleet = propose_fleet(request, task, conditions, observe=observe)
        return _Found(
            plan=fleet.plan,
            cluster=fleet.cluster,
            step_s=fleet.step.step_s,
            truth="closed form",
            as_json=partial(fleet_json, request, fleet),
            lines=partial(fleet_lines, fleet),
            draw=lambda _: None,  # a fleet is not searched for dollars
            cost=fleet.step.step_s,
        )
    proposal = propose_for(request, model, task, conditions, observe=observe)
    return _Found(
        plan=proposal.plan,
        cluster=proposal.cluster,
        step_s=proposal.split.step_s,
        truth="simulated",
        as_json=partial(_json, request, proposal),
        lines=partial(_lines, request, proposal),
        draw=partial(draw_pareto, request, proposal),
        cost=proposal.cost(request.objective),
        settings=codec_settings(proposal.codecs),
    )


def _changes(request: PlanRequest, out: Path) -> list[str]:
    """Return the settings with which a configuration trains as planned."""
    given = {
        "plan.cluster": request.cluster,
        "train.batch": request.batch,
        "train.remat": request.remat,
        "optimizer.sharded": "true" if request.sharded_optimizer else None,
        "run.matmul_precision": request.matmul_precision,
        "lora.rank": request.lora_rank or None,
        "lora.targets": json.dumps(request.lora_targets) if request.lora_rank else None,
        "train.frozen": json.dumps(request.frozen) if request.frozen else None,
    }
    changes = [f"{key}={value}" for key, value in given.items() if value is not None]
    return [f"plan.file={out}", *changes]


def _configured(
    request: PlanRequest, config: Path | None, settings: tuple[str, ...]
) -> tuple[PlanRequest, "ModelConfig"]:
    """Return the request with what a configuration says, and the configured model."""
    from jaxpipe.config import load_config
    from jaxpipe.errors import ConfigError

    if config is None:
        raise ConfigError("`--set` changes a configuration: give `--config`, or leave it out")
    if request.model is not None:
        raise ConfigError(
            f"a configuration has its model: `--model` is {request.model}, `--config` {config}; "
            "leave out one of them"
        )
    read = load_config(config, settings, notice=None)
    paced = read.paced
    complete = replace(
        request,
        cluster=request.cluster or read.plan.cluster,
        model=str(config),
        batch=read.train.batch if request.batch is None else request.batch,
        remat=None if request.search_remat else request.remat or read.train.remat,
        matmul_precision=request.matmul_precision or read.run.matmul_precision,
        sharded_optimizer=request.sharded_optimizer or read.optimizer.sharded,
        lora_rank=request.lora_rank or read.lora.rank,
        lora_targets=request.lora_targets if request.lora_rank else read.lora.targets,
        frozen=request.frozen or read.train.frozen,
        profile=Path(paced.profile)
        if request.profile is None and paced.profile and not request.profile_of
        else request.profile,
        tflops=paced.tflops if request.tflops is None else request.tflops,
        ideal=request.ideal or paced.ideal,
        cold_connections=request.cold_connections or not read.run.keep_warm,
    )
    sequence = read.train.sequence or read.model.sequence
    return complete, replace(read.model, sequence=sequence)


def _lines(request: PlanRequest, proposal: "Proposal") -> list[str]:
    from jaxpipe.plan import draw_plan

    plan, split = proposal.plan, proposal.split
    if plan.num_ranks <= _FEW_RANKS:
        drawn = draw_plan(plan, proposal.cluster).splitlines()
    else:
        drawn = _summary(proposal)
    parts = {
        "compute": split.compute_s,
        **({"update": split.update_s} if split.update_s else {}),  # 0 if it was not measured
        "bubble": split.bubble_s,
        "activations": split.activations_s,
        "gradients": split.gradients_s,
    }
    identity, chance = proposal.identity_s / split.step_s, proposal.random_median_s / split.step_s
    return [
        *drawn,
        "",
        f"a step takes {split.step_s:.4g} s (simulated)",
        *(f"  {n:<14}{s:10.4g} s {s / split.step_s:7.1%}" for n, s in parts.items()),
        *_bound(proposal),
        *_front(request, proposal),
        "",
        "the same plan with other placements (simulated)",
        f"  {'as listed':<14}{proposal.identity_s:10.4g} s {identity:7.2f}x",
        f"  {'random':<14}{proposal.random_median_s:10.4g} s {chance:7.2f}x   median of "
        f"{len(proposal.random_s)}, {min(proposal.random_s):.4g} to {max(proposal.random_s):.4g} s",
        *(
            ()
            if proposal.dtfm_s is None
            else (f"DT-FM's published cost of this placement: {proposal.dtfm_s:.4f}",)
        ),
        "",
        *(() if proposal.alpa is None else (*_alpa_stages(proposal.alpa, proposal), "")),
        *_outer_lines(request, proposal),
        *codec_lines(request, proposal.codecs),
        *_left_out(request, proposal),
        *_assumed(proposal),
        f"{proposal.num_valued} plans simulated",
    ]


def _bound(proposal: "Proposal") -> list[str]:
    """Return the line about the bound that is proved, and how far the plan is from it."""
    bound, step_s = proposal.bound, proposal.split.step_s
    by = "compute" if bound.compute_s >= bound.cut_s else "the narrowest cut"
    line = f"no plan for these devices takes less than {bound.seconds:.4g} s, by {by}"
    return [f"{line}: at most {step_s / bound.seconds - 1:.0%} to gain"] if bound.seconds else []


def _front(request: PlanRequest, proposal: "Proposal") -> list[str]:
    """Return what a step costs in dollars and energy, and the plans that trade them for seconds."""
    million = proposal.tokens / 1e6
    lines = []
    if proposal.dollars is not None:
        lines.append(
            f"a step costs {proposal.dollars:.4g} dollars, a million tokens "
            f"{proposal.dollars / million:.4g} (simulated)"
        )
    if proposal.watt_hours is not None and request.has_front:
        lines.append(
            f"a step takes {proposal.watt_hours:.4g} watt-hours, a million tokens "
            f"{proposal.watt_hours / million:.4g} (simulated, at the devices' thermal design power)"
        )
    if not proposal.front:
        return lines
    names = [name for name, value in _others(proposal.front[0]) if value is not None]
    rows = [
        f"  {each.seconds:10.4g} s"
        + "".join(f" {v:12.4g} {name}" for name, v in _others(each) if v is not None)
        + f"   {each.plan.shape}, {sum(map(len, each.plan.groups))} devices"
        for each in proposal.front
    ]
    heading = f"plans that no other beats in {' and '.join(['seconds', *names])} (simulated)"
    return [*lines, "", heading, *rows]


def _others(worth: "Worth") -> "tuple[tuple[str, float | None], ...]":
    """Return the names and values of all but seconds."""
    return ("dollars", worth.dollars), ("watt-hours", worth.watt_hours)


def _summary(proposal: "Proposal") -> list[str]:
    from jaxpipe.plan.draw_plan import draw_tree

    plan, devices = proposal.plan, proposal.cluster.devices
    warmups = [" ".join(map(str, each.warmup or ())) for each in plan.pipelines]
    warmup = f", warm-up {_each(warmups)}" if any(warmups) else ""
    counts = (f"{each.microbatch}, {each.num_microbatches} of them" for each in plan.pipelines)
    rows = [
        ", ".join(
            f"{region} x{len(list(members))}"
            # Consecutive devices only: a pipeline that returns to a region shows it twice.
            for region, members in groupby(devices[device].region for device in row)
        )
        for row in plan.placement
    ]
    return [
        f"{plan.shape} on {sum(map(len, plan.groups))} of the {len(devices)} devices of "
        f"{proposal.cluster.name}",
        "",
        *(f"replica {replica:<4}{row}" for replica, row in enumerate(rows)),
        "",
        f"layers      {_each(' '.join(map(str, each.cut)) for each in plan.pipelines)}",
        f"schedule    {plan.schedule_name}{warmup}",
        f"microbatch  {_each(counts)}",
        f"gradients   {plan.all_reduce}, of the first layer along {draw_tree(plan.sync[0])}",
    ]


def _each(texts: "Iterable[str]") -> str:
    """Return what all replicas have, or what each of them has."""
    found = list(texts)
    return found[0] if len(set(found)) == 1 else " | ".join(found)


def _alpa_stages(alpa: "AlpaPlan", proposal: "Proposal") -> list[str]:
    """Draw the stages of Alpa's inter-operator pass, and what equal submeshes cost."""
    staged, devices = alpa.staged, proposal.cluster.devices
    lines = [f"Alpa's inter-operator pass: {staged.step_s:.4g} s a step (predicted)"]
    for number, stage in enumerate(staged.stages):
        names = [devices[device].name for device in stage.devices]
        shown = _few(names)
        layers = f"{stage.layers.start}-{stage.layers.stop - 1}"
        lines.append(
            f"  stage {number:<4}layers {layers:<8}{stage.cost.seconds:10.4g} s a microbatch   "
            f"{len(names)} devices: {shown}"
        )
    if alpa.uneven is not None:
        sizes = " ".join(str(len(stage.devices)) for stage in alpa.uneven.stages)
        lines.append(
            f"  submeshes of different sizes, which the runtime cannot execute: "
            f"{alpa.uneven.step_s:.4g} s a step (predicted), layers "
            f"{' '.join(map(str, alpa.uneven.cut))} on {sizes} devices"
        )
    return lines


def _outer_lines(request: PlanRequest, proposal: "Proposal") -> list[str]:
    from jaxpipe.propose.outer_advice import advice_lines

    if request.outer is OuterQuestion.NONE:
        return []
    return [*advice_lines(proposal.advice, batch=proposal.plan.batch), ""]


def _left_out(request: PlanRequest, proposal: "Proposal") -> list[str]:
    """Return the line about devices without a rank, with the reason found by the search."""
    names = [proposal.cluster.devices[device].name for device in proposal.left_out]
    if not names:
        return ["all devices are used"]
    shown = _few(names)
    if request.has_front:
        worth = "dollars" if request.counts_dollars else "watt-hours"
        reason = f"no plan found with more of them is worth its {worth}"
    elif proposal.larger is None:
        reason = (
            f"no larger plan divides batch {request.batch}, has a layer for each stage and fits "
            "into memory, or none was among the most promising"
        )
    else:
        shape, seconds = proposal.larger
        reason = (
            f"the best plan found with more of them, {shape.stages} stages x {shape.replicas} "
            f"replicas, takes {seconds:.4g} s"
        )
    return [f"{len(names)} devices are not used ({shown}): {reason}"]


def _assumed(proposal: "Proposal") -> list[str]:
    """Return the precision that the plan assumes, and the devices whose memory was not checked."""
    lines = [f"speeds are those of matrix products in {_PRODUCTS[proposal.precision.value]}"]
    names = [proposal.cluster.devices[device].name for device in proposal.unchecked]
    if names:
        lines.append(
            f"memory was not checked on {len(names)} devices of unknown memory ({_few(names)}): "
            "add `memory_gib` or `gpu` to their hosts"
        )
    return lines


_PRODUCTS = {
    "fp32": "float32",
    "tf32": "TF32, in float32 on GPUs without it (`run.matmul_precision`)",
    "fp16": "float16",
    "bf16": "bfloat16",
}


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")


def _json(request: PlanRequest, proposal: "Proposal", out: Path) -> dict[str, Any]:
    plan, split = proposal.plan, proposal.split
    return {
        "truth": "simulated",
        "cluster": proposal.cluster.name,
        "model": request.model,
        "batch": request.batch,
        "objective": request.objective.value,
        "seed": request.seed,
        "seconds": split.step_s,
        "breakdown": {
            "compute": split.compute_s,
            "update": split.update_s,
            "bubble": split.bubble_s,
            "activations": split.activations_s,
            "gradients": split.gradients_s,
        },
        "identity_seconds": proposal.identity_s,
        "random_seconds": proposal.random_s,
        "dtfm_cost": proposal.dtfm_s,
        **_alpa_json(proposal.alpa),
        **_outer_json(proposal.advice),
        **codec_json(proposal.codecs),
        "bound_seconds": proposal.bound.seconds,
        "tokens": proposal.tokens,
        "dollars": proposal.dollars,
        "watt_hours": proposal.watt_hours,
        "front": [
            {
                "seconds": each.seconds,
                "dollars": each.dollars,
                "watt_hours": each.watt_hours,
                "shape": each.plan.shape,
            }
            for each in proposal.front
        ],
        "stages": _value(plan, "num_stages"),
        "replicas": plan.num_replicas,
        "cut": _value(plan, "cut"),
        "schedule": plan.schedule_name,
        "warmup": _value(plan, "warmup"),
        "all_reduce": plan.all_reduce.value,
        "microbatch": _value(plan, "microbatch"),
        "num_microbatches": _value(plan, "num_microbatches"),
        "placement": [each.groups for each in plan.pipelines]
        if plan.has_groups
        else plan.placement,
        "left_out": [proposal.cluster.devices[device].name for device in proposal.left_out],
        "precision": proposal.precision.value,
        "memory_unchecked": [proposal.cluster.devices[each].name for each in proposal.unchecked],
        "plans_simulated": proposal.num_valued,
        "plan_file": str(out),
    }


def _outer_json(advice: "OuterAdvice | None") -> dict[str, Any]:
    if advice is None:
        return {}
    return {
        "outer": {
            "choices": [
                {
                    "islands": 0 if choice.outer is None else choice.outer.islands,
                    "every": 1 if choice.outer is None else choice.outer.every,
                    "delay": 0 if choice.outer is None else choice.outer.delay,
                    "codec": choice.codec.value,
                    "seconds": choice.step_s,
                    "compute_factor": choice.compute_factor,
                    "equal_loss_seconds": choice.equal_loss_s,
                    "published_sizes": choice.is_published,
                }
                for choice in advice.choices
            ],
            "wins_up_to_batch": advice.batch,
            "wins_up_to_bandwidth": advice.bandwidth,
        }
    }


def _value(plan: "Plan", name: str) -> Any:
    """Return the value that all replicas have, or a list with that of each."""
    values = [getattr(pipeline, name) for pipeline in plan.pipelines]
    return values[0] if all(each == values[0] for each in values) else values


def _alpa_json(alpa: "AlpaPlan | None") -> dict[str, Any]:
    if alpa is None:
        return {}
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
