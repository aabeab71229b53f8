"""`jaxpipe plan`: searches the fastest plan for a model on a cluster."""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from jaxpipe.cli.plan_codecs import codec_settings
from jaxpipe.cli.plan_fleet import fleet_json, fleet_lines
from jaxpipe.cli.plan_pareto import check_pareto, draw_pareto
from jaxpipe.cli.plan_text import plan_json, plan_lines
from jaxpipe.propose.request import PlanRequest

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from collections.abc import Callable

    from jaxpipe.collective import Codecs
    from jaxpipe.models import ModelConfig
    from jaxpipe.plan import Plan
    from jaxpipe.schedule import Remat
    from jaxpipe.topo import Cluster


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
    configured, changes = None, _changes(request, out)
    if config is not None or settings:
        request, configured = _configured(request, config, settings)
    elif request.remat is None and not request.search_remat:
        changes.append("train.remat=full")  # unlike the default of a configuration
    with search_progress(
        "searching a plan", of="plans simulated", budget_s=request.budget
    ) as observe:
        found = _found_with_remat(request, configured, observe=observe)
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
    request: PlanRequest, configured: "_Configured | None", *, observe: "Callable[[int], None]"
) -> _Found:
    """Return the best plan, of all rematerialisations if the request says so."""
    from jaxpipe.propose.remat_search import best_remat

    find = partial(_found, configured=configured, observe=observe)
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
    request: PlanRequest, configured: "_Configured | None", *, observe: "Callable[[int], None]"
) -> _Found:
    from jaxpipe.collective import NO_CODECS
    from jaxpipe.propose.fleet_proposal import MOST_SIMULATED, propose_fleet
    from jaxpipe.propose.proposal import preset_model, propose_for, task_and_conditions

    model = preset_model(request) if configured is None else configured.model
    codecs = NO_CODECS if configured is None else configured.codecs
    task, conditions = task_and_conditions(request, model)
    conditions = replace(conditions, codecs=codecs)
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
        as_json=partial(plan_json, request, proposal),
        lines=partial(plan_lines, request, proposal, codecs=codecs),
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
        "optimizer.name": request.optimizer,
        "optimizer.sharded": "true" if request.sharded_optimizer else None,
        "run.matmul_precision": request.matmul_precision,
        "lora.rank": request.lora_rank or None,
        "lora.targets": json.dumps(request.lora_targets) if request.lora_rank else None,
        "train.frozen": json.dumps(request.frozen) if request.frozen else None,
    }
    changes = [f"{key}={value}" for key, value in given.items() if value is not None]
    return [f"plan.file={out}", *changes]


class _Configured(NamedTuple):
    """The parts of a configuration for which there is no option."""

    model: "ModelConfig"
    codecs: "Codecs"


def _configured(
    request: PlanRequest, config: Path | None, settings: tuple[str, ...]
) -> tuple[PlanRequest, _Configured]:
    """Return the request with what a configuration says, and what else it says."""
    from jaxpipe.config import load_config
    from jaxpipe.errors import ConfigError
    from jaxpipe.propose.conditions import codecs_of

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
        optimizer=request.optimizer or read.optimizer.name,
        sharded_optimizer=request.sharded_optimizer or read.optimizer.sharded,
        codecs=read.plan.codecs if request.codecs == "none" else request.codecs,
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
    model = replace(read.model, sequence=sequence)
    return complete, _Configured(model=model, codecs=codecs_of(read))
