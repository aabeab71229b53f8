"""`jaxpipe compare`: trains with the pipeline and with baselines, in turn on the same ranks."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from jaxpipe.cli.option_fields import Fills
from jaxpipe.run.terminal.console import set_words

if TYPE_CHECKING:  # these import numpy or jax, which `--help` can do without
    from jaxpipe.baselines.compare.measured import MeasuredStep, MeasuredSystem
    from jaxpipe.baselines.compare.system import Executor
    from jaxpipe.baselines.systems import System
    from jaxpipe.config import Config
    from jaxpipe.plan import Plan
    from jaxpipe.runtime.metrics.run_truth import RunTruth

logger = logging.getLogger(__name__)


def compare(
    config: tyro.conf.Positional[Path],
    *,
    against: str = "alpa,megatron,zero3,ddp",
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    steps: Annotated[int, Fills("train.steps")] = 10,
    executor: Literal["spmd", "host"] = "spmd",
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("runs/compare"),
    rank_of: Annotated[str | None, tyro.conf.arg(metavar="SYSTEM")] = None,
) -> int:
    """Train with the pipeline, then with each baseline, and write one table and one plot.

    Each system starts its own ranks on this host, as many as the plan has. For emulated links, put
    `jaxpipe emulate CLUSTER --` in front: all systems then cross the same ones.

    Args:
        config: a TOML file, as `jaxpipe train` takes it.
        against: the baselines, separated by commas: alpa and hidup (the strategies found for the
            links that are timed, which they measure first), megatron, zero3, ddp, horovod; and for
            models with experts gshard, deepspeed-moe, fastmoe.
        settings: a change to the file, such as `train.batch=8`; may be repeated.
        steps: the number of steps of each.
        executor: how baselines run: `spmd` as one program, `host` in segments between collectives,
            which a thread runs during products (XLA for CPUs runs them between products).
        out: the folder of the results.
        rank_of: run as one rank of this system; `compare` starts its ranks with it.
    """
    from jaxpipe.baselines.compare.system import Executor, systems_from
    from jaxpipe.config import load_config

    systems = systems_from(against)
    # The last settings win: each system has these steps, and the pipeline a folder of its own.
    read = load_config(
        config,
        (*settings, f"train.steps={steps}", f"run.folder={out / 'pipeline'}"),
        notice=None if rank_of is not None else print,
    )
    if rank_of is not None:
        return _be_rank(rank_of, read, out, Executor(executor))
    command = [*_command(config, settings, steps, out), "--executor", executor]
    return _compare(command, systems, read, Executor(executor), out)


def _be_rank(name: str, config: "Config", out: Path, executor: "Executor") -> int:
    from jaxpipe.baselines.systems import Way, system_named
    from jaxpipe.config import cluster_from
    from jaxpipe.errors import ConfigError
    from jaxpipe.plan import ResolvedPlan, read_resolved_plan
    from jaxpipe.propose.resolve import plan_from
    from jaxpipe.run.folder.prepare_run import PLAN_FILE
    from jaxpipe.runtime.process.affinity import pin
    from jaxpipe.runtime.process.compile_cache import use_compile_cache
    from jaxpipe.runtime.process.gpu_assignment import take_devices
    from jaxpipe.runtime.process.launched_rank import check_launched_rank, rank_here
    from jaxpipe.runtime.process.process_signals import die_with_parent

    here = rank_here(os.environ)
    if here is None:
        raise ConfigError(
            "`--rank-of` is for ranks that an MPI has started; leave it out, or use mpirun"
        )
    system = system_named(name, Way.EXECUTE, field="--rank-of")
    plan_file = Path(config.run.folder) / PLAN_FILE
    if plan_file.exists():
        resolved = read_resolved_plan(plan_file)
    else:  # started by an mpirun of the user's: each rank resolves the same plan
        resolved = ResolvedPlan.of(plan_from(config), cluster_from(config))
    check_launched_rank(here, num_ranks=resolved.plan.num_ranks)
    # Before the import, which loads jax and MPI: XLA counts cores and GPUs only once.
    die_with_parent()
    pin(os.environ)
    take_devices(os.environ, each=1)
    use_compile_cache(os.environ)

    from jaxpipe.baselines.compare.compare_rank import run_system

    run_system(
        system,
        config,
        resolved,
        folder=out,
        observe=_StepLine(name, config, out),
        executor=executor,
    )
    return 0


class _StepLine:
    """Callback that prints every step, and says it for the progress line of the launcher."""

    def __init__(self, system: str, config: "Config", folder: Path) -> None:
        self._system, self._folder = system, folder
        self._num_steps = config.train.steps

    def __call__(self, step: "MeasuredStep") -> None:
        """Print a step."""
        from jaxpipe.run.terminal.progress import Progress
        from jaxpipe.run.terminal.rank_progress import write_progress

        what, total = f"{self._system}: training", self._num_steps
        write_progress(
            self._folder,
            Progress(what=what, done=step.step, total=total, unit="step", is_logged=True),
        )
        print(
            f"  step {step.step:>4}/{self._num_steps}   loss {step.loss:.5f}   {step.step_s:.3f} s",
            flush=True,
        )


def _command(config: Path, settings: Sequence[str], steps: int, out: Path) -> list[str]:
    changed = [str(config), *set_words(settings)]
    return ["compare", *changed, "--steps", str(steps), "--out", str(out)]


def _compare(
    command: list[str],
    systems: "Sequence[System]",
    config: "Config",
    executor: "Executor",
    out: Path,
) -> int:
    from jaxpipe.baselines.compare.check_request import check_comparison
    from jaxpipe.baselines.compare.measured import read_measured
    from jaxpipe.baselines.compare.table import markdown, write_table
    from jaxpipe.baselines.systems import System
    from jaxpipe.config import cluster_from
    from jaxpipe.config.build_job import describe
    from jaxpipe.errors import ConfigError, RunError
    from jaxpipe.plan import ResolvedPlan
    from jaxpipe.propose.resolve import plan_from
    from jaxpipe.run.folder.prepare_run import write_resolved_plan
    from jaxpipe.run.terminal.console import console
    from jaxpipe.run.terminal.rank_progress import shown_ranks
    from jaxpipe.runtime.metrics.run_truth import truth_of
    from jaxpipe.runtime.process.launched_rank import rank_here
    from jaxpipe.runtime.process.mpirun import launch

    if rank_here(os.environ) is not None:
        raise ConfigError(
            "`jaxpipe compare` starts its own ranks, one system after the other: leave out mpirun"
        )
    plan = plan_from(config)
    everyone = (System.PIPELINE, *systems)
    # All systems are checked before the first starts: no refusal after some have trained.
    check_comparison(config, plan, everyone, executor=executor, folder=out)
    # The ranks of every system read it.
    write_resolved_plan(config, ResolvedPlan.of(plan, cluster_from(config)))
    all_measured = []
    for system in everyone:
        console.print(f"{system}: {plan.num_ranks} ranks, compiling ...", markup=False)
        arguments = [*command, "--rank-of", system.value]
        with shown_ranks(out, f"{system}: compiling") as (output, show):
            code = launch(arguments, num_ranks=plan.num_ranks, output=output, poll=show)
        if code == 130:  # 128 + SIGINT: the user has stopped it
            return code
        if code:
            raise RunError(f"{system}: its ranks ended with exit code {code}; {_why(output.tail)}")
        all_measured.append(read_measured(out, system))
    truth = truth_of(config.run, os.environ, cluster=config.plan.cluster)
    notes = f"{_notes(all_measured, config, plan, truth)} {_RUN_BY[executor]}"
    console.print(f"\n{markdown(all_measured, truth.truth)}\n\n{notes}\n", markup=False)
    description = {**describe(config), "command": ["jaxpipe", *command]}
    files = [*write_table(all_measured, description, out, truth=truth.truth, notes=notes)]
    files += _picture(all_measured, out, truth)
    console.print("\n".join(f"{'results':<12}{path}" for path in files), markup=False)
    console.print(f"\nnext: jaxpipe train {command[1]}", markup=False)
    return 0


_RUN_BY = {
    "spmd": "Collectives of the baselines are XLA's, which on CPUs runs them between products.",
    "host": "The host runs collectives of the baselines as messages, during products.",
}


def _why(output: str) -> str:
    """Return the rank that its launcher reports as killed, or where ranks have said why."""
    from jaxpipe.runtime.process.exit_cause import find_exit_cause

    death = find_exit_cause(output)
    if death is None:
        return "their output is above"
    return f"{death}" if death.rank is None else f"rank {death.rank}: {death}"


def _picture(all_measured: "Sequence[MeasuredSystem]", out: Path, truth: "RunTruth") -> list[Path]:
    from jaxpipe.baselines.compare.compare_picture import draw
    from jaxpipe.errors import UserError

    try:
        draw(all_measured, out / "compare.png", truth=truth.truth)
    except UserError as error:
        logger.warning("the comparison has no picture: %s", error)
        return []
    return [out / "compare.png"]


def _notes(
    all_measured: "Sequence[MeasuredSystem]", config: "Config", plan: "Plan", truth: "RunTruth"
) -> str:
    from jaxpipe.baselines.compare.slow_link_bytes import regions_of
    from jaxpipe.config import cluster_from

    regions = dict.fromkeys(regions_of(plan, cluster_from(config)))
    slow = "between regions" if len(regions) > 1 else "all, as the ranks are in one region"
    searched = "".join(
        f" {measured.system} searched for the speeds that were measured with all ranks busy: "
        f"{measured.searched_for}."
        for measured in all_measured
        if measured.searched_for is not None
    )
    return (
        f"{plan.num_ranks} ranks, batch {config.train.batch}, {config.train.steps} steps; step "
        f"times are medians of the steps after the first ({truth}). The baselines compute the "
        f"whole batch at once. Slow links: {slow}. Counted bytes are those of the compiled step's "
        "collectives, sent along rings. Memory is the peak of a rank's process, with Python, its "
        f"libraries and compilation. The placement is that of cluster {config.plan.cluster}."
        f"{searched}"
    )
