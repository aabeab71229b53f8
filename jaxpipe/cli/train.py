"""`jaxpipe train`: starts the ranks if it has to, and is a rank if it was started as one."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.runtime.settings import ComputeKind, Survival, TransportKind


def train(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    resume: bool = False,
    compute: ComputeKind | None = None,
    transport: TransportKind | None = None,
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
    """
    from jaxpipe.config import check_paced, check_run, load_config, plan_from
    from jaxpipe.runtime.launch import check_seat, launch, seat
    from jaxpipe.runtime.ulfm import check_survival
    from jaxpipe.runtime.watch import clear_cause, clear_ended

    chosen = {"run.compute": compute, "run.transport": transport}
    settings += tuple(f"{key}={kind}" for key, kind in chosen.items() if kind is not None)
    here = seat(os.environ)
    read = load_config(config, settings)
    plan = plan_from(read)
    check_seat(here, num_ranks=plan.num_ranks)
    is_paced = read.run.compute is ComputeKind.PACED
    survives = read.run.survive is Survival.SHRINK
    if here is not None and survives:
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
        words = _arguments(config, settings, resume=resume)
        code = launch(words, num_ranks=plan.num_ranks, survives=survives)
        return _judge(Path(read.run.folder), code=code, survives=survives)

    from jaxpipe.runtime.process import die_with_parent, pin

    if here is not None:
        die_with_parent()
        pin(os.environ)

    if is_paced:
        from jaxpipe.cli.paced import run_paced

        return run_paced(read, plan)

    from jaxpipe.cli.rank import Begin, run_rank

    return run_rank(read, plan, Begin(resume=resume, found=checkpoint))


def _judge(folder: Path, *, code: int, survives: bool) -> int:
    """Return the exit code of the run; write a cause where no rank could, because it was killed."""
    from jaxpipe.runtime.launch import TOLD_TO_STOP
    from jaxpipe.runtime.watch import Cause, CauseKind, has_ended, write_cause

    is_over = code in (2, *TOLD_TO_STOP) or (code == 0 and (not survives or has_ended(folder)))
    if is_over:
        return code
    message = f"mpirun ended with exit code {code}, and no rank has said why"
    write_cause(folder, Cause(kind=CauseKind.KILLED, message=message))
    return code or 1


def _arguments(config: Path, settings: tuple[str, ...], *, resume: bool) -> list[str]:
    changes = [word for setting in settings for word in ("--set", setting)]
    return ["train", str(config), *changes, *(["--resume"] if resume else [])]
