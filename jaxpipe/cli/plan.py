"""`jaxpipe plan`: searches the fastest plan for a configuration."""

import json
import os
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxpipe.cli.exported_plan import needed_settings, write_exports
from jaxpipe.cli.option_fields import Fills
from jaxpipe.cli.plan_codecs import codec_settings
from jaxpipe.cli.plan_fleet import fleet_json, fleet_lines
from jaxpipe.cli.plan_loss import loss_json, loss_lines, loss_settings
from jaxpipe.cli.plan_pareto import check_pareto, draw_pareto
from jaxpipe.cli.plan_text import plan_json, plan_lines
from jaxpipe.propose.options import Goal, SearchOptions, TrainingSystem

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from collections.abc import Callable

    from jaxpipe.config import Config
    from jaxpipe.plan import Plan
    from jaxpipe.topo import Cluster


def plan(  # noqa: PLR0913  each is an option of the command line
    options: tyro.conf.OmitArgPrefixes[SearchOptions],
    config: tyro.conf.Positional[Path | None] = None,
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    model: Annotated[str | None, Fills("model.preset")] = None,
    cluster: Annotated[str | None, Fills("plan.cluster")] = None,
    batch: Annotated[int | None, Fills("train.batch")] = None,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("plan.toml"),
    export: TrainingSystem | None = None,
    pareto: Path | None = None,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Plan a training run, and write a plan file for `jaxpipe train`.

    Fields of `[plan]`, and `train.remat`, that the configuration does not set are searched
    together, within the memory of each device; what it sets is kept.

    Args:
        options: the objective and the search.
        config: a TOML file; without one, `--model` and `--batch` say what to plan.
        settings: a change to it, such as `plan.stages=4`; may be repeated.
        model: a preset, for example `gpt-xl-24`: `--set model.preset=...`.
        cluster: a cluster of the catalogue, for example `case5-worldwide`, or a TOML file: `--set
            plan.cluster=...`.
        batch: samples per step, over all replicas: `--set train.batch=...`.
        out: the file to write.
        export: another system to write the plan for as well, beside `--out`: `torch-csv`,
            `torchtitan`, `megatron` or `deepspeed`.
        pareto: a picture to draw of the plans that no other beats in seconds and dollars, or in
            seconds and energy, `.png`, `.svg` or `.pdf`; for an objective or a limit of these.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.plan import write_plan
    from jaxpipe.run.folder.output_files import check_output
    from jaxpipe.run.terminal.console import console, train_command

    shorthands = {"model.preset": model, "plan.cluster": cluster, "train.batch": batch}
    changes = (f"{key}={value}" for key, value in shorthands.items() if value is not None)
    settings = (*changes, *settings)
    check_output("--out", out)
    check_pareto(options, pareto)
    read = _configuration(config, settings)
    if needed := needed_settings(export, read):
        settings = (*settings, *needed)
        read = _configuration(config, settings)
    is_of_loss = options.objective is Goal.LOSS
    answer = _loss_answer(read, options, export) if is_of_loss else _answer(read, options)
    if config is not None:  # settings alone have no run yet, nor its data
        _check_can_run(_configuration(config, (*settings, *answer.settings)), answer)
    name = _name(config, model)
    about = f"Planned for {name}, batch {read.train.batch}, {answer.about(options)}"
    write_plan(answer.plan, answer.cluster, out, about=about)
    exports = write_exports(export, read, answer.plan, answer.cluster, out, codecs=answer.settings)
    if pareto is not None:
        answer.draw(pareto)
    if json_:
        print(json.dumps({**answer.as_json(out), "model": name}))
        return 0
    console.print("\n".join(answer.lines()), markup=False)
    following = train_command(
        config or Path("CONFIG"), (*settings, f"plan.file={out}", *answer.settings)
    )
    console.print("\n".join(("", f"plan -> {out}", *exports, f"next: {following}")), markup=False)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A plan, and how to print it."""

    plan: "Plan"
    cluster: "Cluster"
    step_s: float
    truth: str
    as_json: "Callable[[Path], dict[str, Any]]"
    lines: "Callable[[], list[str]]"
    draw: "Callable[[Path], None]"
    settings: tuple[str, ...] = ()

    def about(self, options: SearchOptions) -> str:
        """Return the objective, and what a step takes, in words."""
        more = f", with {', '.join(self.settings)}" if self.settings else ""
        return f"objective {options.objective}: {self.step_s:.4g} s a step, {self.truth}{more}."


def _configuration(config: Path | None, settings: tuple[str, ...]) -> "Config":
    """Return the configuration to plan for: a file with changes, or changes alone."""
    from jaxpipe.config import config_of_settings, load_config
    from jaxpipe.errors import ConfigError

    if config is not None:
        # A plan file decides the plan: `plan` makes another one.
        return load_config(config, (*settings, "plan.file=''"), notice=None)
    keys = {setting.partition("=")[0].strip() for setting in settings}
    if not any(key.startswith("model.") for key in keys):
        raise ConfigError("`--model` is missing: name a preset, or give a configuration file")
    if "train.batch" not in keys:
        raise ConfigError("`--batch` is missing: samples per step; or give a configuration file")
    return config_of_settings(settings)


def _name(config: Path | None, model: str | None) -> str:
    return model or ("settings" if config is None else shlex.quote(str(config)))


def _check_can_run(read: "Config", answer: _Answer) -> None:
    from jaxpipe.run.verdict import check_can_run

    check_can_run(read, answer.plan, answer.cluster, environment=os.environ)


def _loss_answer(read: "Config", options: SearchOptions, export: TrainingSystem | None) -> _Answer:
    from jaxpipe.config import check_settings, cluster_from
    from jaxpipe.errors import ConfigError
    from jaxpipe.propose.fleet_proposal import MOST_SIMULATED
    from jaxpipe.propose.time_to_loss import num_searches, propose_to_loss
    from jaxpipe.run.terminal.progress import search_progress

    if export is not None:
        raise ConfigError(
            f"`--export` ({export}) writes a schedule, and `--objective loss` also decides what "
            "no other system reads; leave out one of them"
        )
    check_settings(read)
    cluster = cluster_from(read)
    if len(cluster) > MOST_SIMULATED:
        raise ConfigError(
            f"`--objective` is loss, which simulates at most {MOST_SIMULATED:,} devices: cluster "
            f"{cluster.name!r} has {len(cluster):,}"
        )
    budget_s = num_searches(read) * options.seconds(len(cluster))
    with search_progress("searching plans", of="plans simulated", budget_s=budget_s) as progress:
        proposal = propose_to_loss(
            read, options, observe=progress.tried, measuring=progress.measuring
        )
    best = proposal.best
    return _Answer(
        plan=best.plan,
        cluster=best.cluster,
        step_s=best.step_s,
        truth="simulated",
        as_json=partial(loss_json, read, options, proposal),
        lines=partial(loss_lines, read, options, proposal),
        draw=lambda _: None,
        settings=loss_settings(best),
    )


def _answer(read: "Config", options: SearchOptions) -> _Answer:
    from jaxpipe.config import check_settings, cluster_from
    from jaxpipe.propose.fleet_proposal import MOST_SIMULATED, propose_fleet
    from jaxpipe.propose.proposal import propose
    from jaxpipe.run.terminal.progress import search_progress

    check_settings(read)
    cluster = cluster_from(read)
    budget_s = options.seconds(len(cluster))
    with search_progress("searching a plan", of="plans simulated", budget_s=budget_s) as progress:
        if len(cluster) > MOST_SIMULATED:
            fleet = propose_fleet(read, options, cluster, observe=progress.tried)
            return _Answer(
                plan=fleet.plan,
                cluster=fleet.cluster,
                step_s=fleet.step.step_s,
                truth="closed form",
                as_json=partial(fleet_json, read, options, fleet),
                lines=partial(fleet_lines, fleet),
                draw=lambda _: None,  # a fleet is not searched for dollars
            )
        proposal = propose(read, options, observe=progress.tried, measuring=progress.measuring)
    return _Answer(
        plan=proposal.plan,
        cluster=proposal.cluster,
        step_s=proposal.step_s,
        truth="simulated",
        as_json=partial(plan_json, read, options, proposal),
        lines=partial(plan_lines, read, options, proposal),
        draw=partial(draw_pareto, options, proposal),
        settings=codec_settings(proposal.codecs),
    )
