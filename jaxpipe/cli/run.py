"""`jaxpipe run`: trains, and restarts after a failure."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.cli.versions import version_line
from jaxpipe.errors import ConfigError
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.runtime.process.mpirun import run_child
from jaxpipe.runtime.run_config import AllowedChange

if TYPE_CHECKING:  # it imports the configuration, which `--help` can do without
    from jaxpipe.run.supervise.ending import Attempt
    from jaxpipe.run.train_request import TrainRequest


def run(  # noqa: PLR0913  each is an option of the command line
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    resume: bool = False,
    allow_changed: tuple[AllowedChange, ...] = (),
    restarts: int = 3,
    hosts: bool = False,
    listen: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None,
    hooks: tyro.conf.Suppress[str | None] = None,
) -> int:
    """Train a model, and restart from the newest intact checkpoint after a failure.

    If the same rank is lost twice from the same checkpoint, the next attempt has a plan with fewer
    ranks, without the device of that rank. When that attempt fails after it has saved a checkpoint,
    the next one has all ranks again. The folder of the run is locked until the last attempt ends.

    Ranks run on this host. With `--hosts`, each runs on the host of its device in the plan, where
    Open MPI's `mpirun` starts it over ssh; a host that does not answer after a failure is left out,
    and others join with `jaxpipe join`.

    Args:
        config: a TOML file.
        settings: a change to it, such as `train.steps=10`; may be repeated.
        resume: continue from the newest intact checkpoint in the folder of the run.
        allow_changed: what may differ from that checkpoint: `data`, the samples and their order,
            which then begins at its first sample.
        restarts: maximum number of restarts.
        hosts: start each rank on the host of its device.
        listen: the address at which hosts join, as HOST:PORT or [IPv6]:PORT; by default a free
            port of the addresses of this host on the ways to the others.
        hooks: as in `jaxpipe train`; not among the options.
    """
    if restarts < 0:
        raise ConfigError(f"`--restarts` must not be negative, is {restarts}; use 0 to start once")

    from jaxpipe.run.train_request import TrainRequest

    request = TrainRequest(
        config=config,
        settings=settings,
        resume=resume,
        allow_changed=allow_changed,
        hooks=hooks,
    )
    if hosts:
        return _over_hosts(request, restarts=restarts, listen=listen)
    if listen is not None:
        raise ConfigError(f"`--listen` ({listen!r:.80}) needs `--hosts`; add it")

    return _here(request, restarts=restarts)


def _here(request: "TrainRequest", *, restarts: int) -> int:
    from jaxpipe.config import load_config
    from jaxpipe.run.supervise.planner import Planner
    from jaxpipe.run.supervise.site import ThisHost
    from jaxpipe.run.supervise.supervisor import Run, supervise
    from jaxpipe.run.train_request import ENTRY

    def start(attempt: "Attempt") -> int:
        attempted = replace(
            request,
            settings=attempt.settings,
            resume=attempt.from_step is not None,
            is_supervised=True,
        )
        command = [sys.executable, "-P", "-m", ENTRY, *attempted.words]
        return run_child(command, poll=lock.beat)

    run = Run(
        planner=Planner(config=request.config, settings=request.settings),
        site=ThisHost(start=start),
        max_restarts=restarts,
        show=_show,
    )
    folder = Path(load_config(request.config, request.settings, notice=_show).run.folder)
    # Over all attempts: another run that began between two of them would mix its steps with ours.
    # No thread touches the lock: this process has to fork.
    with locked(folder, beats=False) as lock:
        code = supervise(run, resume=request.resume)
    _show_next(code, f"{request.config}", request.settings)
    return code


def _over_hosts(request: "TrainRequest", *, restarts: int, listen: str | None) -> int:
    from jaxpipe.run.hosts.run_over_hosts import HostsRequest, run_over_hosts

    code = run_over_hosts(
        HostsRequest(train=request, max_restarts=restarts, versions=version_line(), listen=listen),
        show=_show,
    )
    _show_next(code, f"{request.config} --hosts", request.settings)
    return code


def _show_next(code: int, words: str, settings: Sequence[str]) -> None:
    if code not in (0, 2):
        changes = "".join(f" --set {setting}" for setting in settings)
        _show(f"next: jaxpipe run {words}{changes} --resume")


def _show(line: str) -> None:
    print(f"\n{line}", flush=True)
