"""Prepare a run: resolve its plan, check its inputs, create its folder.

This happens once per run: in the launcher, or on rank 0 if the user's own MPI launcher has started
the ranks. The plan is written to `plan.toml` in the run folder (`jaxpipe.plan.plan_file`).
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.config import (
    Config,
    check_here,
    check_outlives,
    check_paced,
    check_run,
    cluster_from,
    epochs_line,
    keep_inputs,
    notices_of,
)
from jaxpipe.config.kept_inputs import CONFIG_FILE
from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import check_link, reason_of
from jaxpipe.plan import Plan, ResolvedPlan, draw_plan, resolved_plan_text
from jaxpipe.propose.conditions import counted_profile
from jaxpipe.propose.resolve import resolve
from jaxpipe.run.drift.new_plan import clear_adopted
from jaxpipe.run.folder.output_files import announce_replaced, check_run_folder, unwritable
from jaxpipe.run.quorum.merge_line import server_address
from jaxpipe.run.terminal.console import console, next_line
from jaxpipe.run.verdict import check_can_run
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.metrics.records import METRICS_FILE, TRACE_FILE
from jaxpipe.runtime.run_config import AllowedChange, ComputeKind, RunConfig, TransportKind
from jaxpipe.runtime.watchdog import clear_cause, clear_ended, clear_heartbeats
from jaxpipe.runtime.watchdog.cause import CAUSE_FILE, ENDED_FILE
from jaxpipe.topo import Cluster

PLAN_FILE = "plan.toml"
"""The plan of a run, in its folder."""
_FILES = (PLAN_FILE, METRICS_FILE, CONFIG_FILE, CAUSE_FILE, ENDED_FILE)
"""What a run writes into its folder; pictures and traces may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that may start: `checkpoint` is where it resumes, if it does.

    `choices` are lines about what was searched for the plan, if anything was.
    """

    config: Config
    plan: Plan
    cluster: Cluster
    checkpoint: Checkpoint | None
    choices: tuple[str, ...] = ()

    @property
    def resolved(self) -> ResolvedPlan:
        """The plan as ranks receive it."""
        return ResolvedPlan.of(self.plan, self.cluster)

    @property
    def is_complete(self) -> bool:
        """Whether the run has no step left: it resumes after its last."""
        return self.checkpoint is not None and self.checkpoint.step >= self.config.train.steps


def prepare(
    config: Config,
    *,
    resume: bool,
    found: Checkpoint | None = None,
    num_ranks: int | None = None,
    allowed: Collection[AllowedChange] = (),
) -> Prepared:
    """Resolve the plan and check the run; changes nothing.

    A run that resumes looks for its checkpoint in its folder, if none was `found` before. A
    launcher of the user may have started `num_ranks`, which a searched plan has to have.

    Raises:
        UserError: the input is wrong.
    """
    cluster = cluster_from(config)
    resolution = resolve(config, cluster, num_ranks=num_ranks)
    plan = resolution.plan
    check_run_folder(Path(config.run.folder))
    check_entries(Path(config.run.folder))
    if config.quorum.is_on:
        server_address(config.quorum)
    checkpoint, is_paced = None, config.run.compute is ComputeKind.PACED
    if is_paced:
        check_paced(config, resume=resume)
    check_can_run(config, plan, cluster, environment=os.environ)
    if not is_paced:
        check_here(config, plan, os.environ)  # ranks of any cluster, which may be emulated
        check_outlives(config)
        checkpoint = check_run(config, resume=resume, found=found, allowed=allowed)
    return Prepared(
        config=config,
        plan=plan,
        cluster=cluster,
        checkpoint=checkpoint,
        choices=resolution.lines,
    )


def begin_folder(prepared: Prepared) -> Path:
    """Forget how the last run in the folder ended, and write the inputs of this one.

    Returns the file of the plan.

    Raises:
        ConfigError: the folder cannot be made or written, or has something else than files.
    """
    folder = Path(prepared.config.run.folder)
    if prepared.checkpoint is None:
        announce_replaced(folder / name for name in (PLAN_FILE, METRICS_FILE, TRACE_FILE))
    # First: it makes the folder, or refuses one that cannot be written.
    plan_file = write_resolved_plan(prepared.config, prepared.resolved)
    keep_inputs(prepared.config, prepared.cluster, folder)
    forget_last_end(folder)
    return plan_file


def check_entries(folder: Path) -> None:
    """Check that what a run writes into its folder stays there, and that no write waits.

    Raises:
        ConfigError: an entry is a link to a file elsewhere, a pipe, a device or a socket, or a
            folder with the name of a file that a run cannot do without.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            if path.name in _FILES and path.is_dir():
                raise ConfigError(
                    f"`run.folder` must hold a file {path.name!r}, and {path} is a folder; remove "
                    "it, or name another folder"
                )
            if not path.is_dir() and not path.is_file() and not path.is_symlink():
                raise ConfigError(
                    f"`run.folder` must hold files and folders, {path} is neither; remove it"
                )
            if path.is_symlink() and not path.is_dir():
                check_link(path)
        except OSError as error:
            raise ConfigError(
                f"`run.folder` must hold files of its own: {path}: {reason_of(error)}; remove it"
            ) from error


def begin_run(prepared: Prepared, *, over_hosts: bool = False) -> Path:
    """Write the inputs of a run into its folder, print its plan, and return the file of the plan.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    plan_file = begin_folder(prepared)
    if prepared.config.run.compute is ComputeKind.REAL:  # a paced run prints its own
        introduce_run(prepared, over_hosts=over_hosts)
    return plan_file


def forget_last_end(folder: Path) -> None:
    """Remove what the last run in a folder has left of its end."""
    clear_cause(folder)
    clear_ended(folder)
    clear_heartbeats(folder)
    clear_adopted(folder)


def write_resolved_plan(config: Config, resolved: ResolvedPlan) -> Path:
    """Write the plan of a run into its folder, and return the file.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    folder = Path(config.run.folder)
    text = resolved_plan_text(resolved, about="The plan of this run, as its ranks execute it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PLAN_FILE).write_text(text)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder / PLAN_FILE


def introduce(config: Config, plan: Plan, cluster: Cluster) -> None:
    """Print the plan of a run that is about to start."""
    if (line := emulation_notice(config.run, cluster)) is not None:
        console.print(f"{line}\n", markup=False)
    profile = counted_profile(config, plan.remat)
    console.print(draw_plan(plan, cluster, profile=profile), markup=False)


def introduce_run(prepared: Prepared, *, over_hosts: bool = False) -> None:
    """Print the plan of a run that is about to start, and the step from which it resumes.

    `over_hosts` says whether it is `jaxpipe run --hosts` that starts the ranks.
    """
    if prepared.choices:
        console.print("\n".join((*prepared.choices, "")), markup=False)
    introduce(prepared.config, prepared.plan, prepared.cluster)
    notices = notices_of(prepared.config, over_hosts=over_hosts)
    for line in filter(None, (epochs_line(prepared.config), *notices)):
        console.print(f"\n{line}", markup=False)
    if prepared.checkpoint is not None:
        console.print(f"\n{resume_notice(prepared.checkpoint, prepared.config)}", markup=False)


def resume_notice(checkpoint: Checkpoint, config: Config) -> str:
    """Return the line that says where a run resumes, or that it is complete."""
    step, steps = checkpoint.step, config.train.steps
    if step < steps:
        return f"resuming after step {step}/{steps}, from {checkpoint.folder}"
    return (
        f"the run is complete: {checkpoint.folder} is that of step {step}, and `train.steps` is "
        f"{steps}; raise it to train on"
    )


def report_complete(prepared: Prepared) -> None:
    """Say that a run has no step left, and what to do with it."""
    assert prepared.checkpoint is not None, "a new run has all its steps left"
    line = resume_notice(prepared.checkpoint, prepared.config)
    following = next_line(
        "generate", prepared.config.run.folder, "--prompt", prepared.config.sample.prompt
    )
    console.print(f"{line}\n\n{following}", markup=False)


def emulation_notice(run: RunConfig, cluster: Cluster) -> str | None:
    """Return the line that says that links are emulated; None where they are real.

    >>> from jaxpipe import topo
    >>> shaped = RunConfig(folder="r", transport=TransportKind.SHAPED, link_scale=0.5)
    >>> emulation_notice(shaped, topo.load("two-region"))
    'links are emulated: each message takes 0.5 x what it takes on cluster two-region, or longer'
    """
    if run.transport is not TransportKind.SHAPED:
        return None
    times = "" if run.link_scale == 1 else f"{run.link_scale:g} x "
    return (
        f"links are emulated: each message takes {times}what it takes on cluster {cluster.name}, "
        "or longer"
    )
