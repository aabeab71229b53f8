"""`jaxpipe train`: starts the ranks if it has to, and is a rank if it was started as one."""

import os
from pathlib import Path
from typing import Annotated

import tyro


def train(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    resume: bool = False,
) -> int:
    """Train a model: on this host, or on the ranks of the `mpirun` that starts this command.

    Args:
        config: a TOML file.
        settings: changes to it, such as `train.steps=10`; give it once for each.
        resume: go on from the newest checkpoint in the run's folder.
    """
    from jaxpipe.config import check_run, load_config, plan_from
    from jaxpipe.runtime.launch import check_seat, launch, seat

    here = seat(os.environ)
    read = load_config(config, settings)
    plan = plan_from(read)
    check_seat(here, num_ranks=plan.num_ranks)
    is_first = here is None or here.rank == 0
    checkpoint = check_run(read, resume=resume) if is_first else None
    if here is None and plan.num_ranks > 1:
        return launch(_arguments(config, settings, resume=resume), num_ranks=plan.num_ranks)

    from jaxpipe.runtime.process import die_with_parent, pin

    if here is not None:
        die_with_parent()
        pin(os.environ)

    from jaxpipe.cli.rank import run_rank

    return run_rank(read, plan, checkpoint, resume=resume)


def _arguments(config: Path, settings: tuple[str, ...], *, resume: bool) -> list[str]:
    changes = [word for setting in settings for word in ("--set", setting)]
    return ["train", str(config), *changes, *(["--resume"] if resume else [])]
