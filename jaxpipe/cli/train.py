"""`jaxpipe train`: starts the ranks if it has to, and is a rank if it was started as one."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.runtime.config import ComputeKind, Survival, TransportKind

if TYPE_CHECKING:
    from jaxpipe.config import Config
    from jaxpipe.plan import Plan


def train(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    resume: bool = False,
    compute: ComputeKind | None = None,
    transport: TransportKind | None = None,
    rank_module: str = "jaxpipe",
) -> int:
    """Train a model: on this host, or on the ranks of the `mpirun` that starts this command.

    Args:
        config: a TOML file.
        settings: changes to it, such as `train.steps=10`; give it once for each.
        resume: go on from the newest checkpoint in the run's folder.
        compute: `paced` waits instead of computing, over emulated links: any model on any machine.
            In place of `run.compute`.
        transport: how messages travel, `shaped` as the cluster's links would let them. In place of
            `run.transport`.
        rank_module: the Python module that is run as each rank, with the same arguments; one of
            your own can change what it likes before it runs `jaxpipe`.
    """
    from jaxpipe.config import check_paced, check_run, load_config, plan_from
    from jaxpipe.runtime.process.mpirun import check_launched_rank, launched_rank
    from jaxpipe.runtime.process.ulfm import check_survival
    from jaxpipe.runtime.watchdog import clear_cause, clear_ended

    chosen = {"run.compute": compute, "run.transport": transport}
    settings += tuple(f"{key}={kind}" for key, kind in chosen.items() if kind is not None)
    here = launched_rank(os.environ)
    read = load_config(config, settings)
    plan = plan_from(read)
    check_launched_rank(here, num_ranks=plan.num_ranks)
    is_paced = read.run.compute is ComputeKind.PACED
    if here is not None and read.run.survive is Survival.SHRINK:
        check_survival(os.environ)
    is_first = here is None or here.rank == 0
    checkpoint = None
    if is_first and is_paced:
        check_paced(read, resume=resume)
    elif is_first:
        checkpoint = check_run(read, resume=resume)
    if is_first:
        clear_cause(Path(read.run.folder))
        clear_ended(Path(read.run.folder))
    if here is None and plan.num_ranks > 1:
        arguments = _arguments(config, settings, resume=resume)
        return _start_ranks(read, plan, arguments, module=rank_module)

    from jaxpipe.runtime.process.affinity import die_with_parent, pin
    from jaxpipe.runtime.process.gpu_assignment import take_devices

    if here is not None:
        die_with_parent()
        pin(os.environ)
        take_devices(os.environ, each=read.mesh.num_devices)

    if is_paced:
        from jaxpipe.run.paced import run_paced

        return run_paced(read, plan)

    from jaxpipe.run.rank import Begin, run_rank

    return run_rank(read, plan, Begin(resume=resume, found=checkpoint))


def _start_ranks(read: "Config", plan: "Plan", arguments: Sequence[str], *, module: str) -> int:
    """Run all ranks, and return the exit code; keep why they ended where none of them could."""
    from jaxpipe.runtime.process.mpirun import launch
    from jaxpipe.runtime.watchdog import has_ended

    folder, survives = Path(read.run.folder), read.run.survive is Survival.SHRINK
    words: list[str] = []
    code = launch(
        arguments, num_ranks=plan.num_ranks, module=module, hear=words.append, survives=survives
    )
    if code == 0 and survives and not has_ended(folder):
        code = 1  # those that were left have gone, too
    _say_if_killed(folder, plan, code=code, words="".join(words))
    is_real = read.run.compute is ComputeKind.REAL
    if code == 0 and is_real and _has_stopped(folder, steps=read.train.steps):
        return 128 + signal.SIGTERM
    return code


def _has_stopped(folder: Path, *, steps: int) -> bool:
    """Return whether a run that ended in order has steps left: one of its ranks was told to stop.

    Who tells this process needs no such proof; but a signal to a rank, or to `mpirun`, passes by.
    """
    from jaxpipe.errors import CheckpointError
    from jaxpipe.runtime.checkpoint import latest, open_checkpoint

    try:
        return open_checkpoint(latest(folder)).step < steps
    except CheckpointError:  # who removes it meanwhile, asks for nothing
        return False


def _say_if_killed(folder: Path, plan: "Plan", *, code: int, words: str) -> None:
    """Write a cause where no rank could, because it was killed; its launcher may have named it."""
    from jaxpipe.runtime.process.exit_cause import find_exit_cause
    from jaxpipe.runtime.process.mpirun import STOP_EXIT_CODES
    from jaxpipe.runtime.watchdog import Cause, CauseKind, write_cause

    if code in (0, 2, *STOP_EXIT_CODES):
        return
    message = f"mpirun ended with exit code {code}, and no rank has said why"
    rank = stage = None
    if (death := find_exit_cause(words)) is not None:
        message, rank = f"{death}", death.rank
        if rank is not None and rank < plan.num_ranks:
            stage = plan.stages(rank)[0]
    write_cause(folder, Cause(kind=CauseKind.KILLED, message=message, rank=rank, stage=stage))


def _arguments(config: Path, settings: tuple[str, ...], *, resume: bool) -> list[str]:
    changes = [word for setting in settings for word in ("--set", setting)]
    return ["train", str(config), *changes, *(["--resume"] if resume else [])]
