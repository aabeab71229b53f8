"""`jaxpipe run`: trains, and restarts after a failure."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.cli.versions import version_line
from jaxpipe.errors import ConfigError
from jaxpipe.run.folder_lock import locked
from jaxpipe.runtime.process.mpirun import run_child

if TYPE_CHECKING:
    from jaxpipe.run.start import TrainRequest
    from jaxpipe.run.supervise import Attempt


def run(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    resume: bool = False,
    restarts: int = 3,
    hosts: bool = False,
    listen: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None,
    hooks: Annotated[str | None, tyro.conf.arg(metavar="MODULE:FUNCTION")] = None,
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
        restarts: maximum number of restarts.
        hosts: start each rank on the host of its device.
        listen: the address at which hosts join, by default a free port of all addresses.
        hooks: as in `jaxpipe train`.
    """
    from jaxpipe.run.start import TrainRequest
    from jaxpipe.run.supervise import Run, supervise

    if restarts < 0:
        raise ConfigError(f"`--restarts` must not be negative, is {restarts}; use 0 to start once")

    if hosts:
        return _over_hosts(
            TrainRequest(config=config, settings=settings, resume=resume, hooks=hooks),
            restarts=restarts,
            listen=listen,
        )
    if listen is not None:
        raise ConfigError(
            f"hosts join a run over hosts: `--listen` is {listen!r:.80}, without `--hosts`; add it"
        )

    def start(attempt: "Attempt") -> int:
        named = () if hooks is None else ("--hooks", hooks)
        # A process per attempt: after a failure, nothing is known of the state of MPI and XLA.
        return run_child(
            [sys.executable, "-P", "-m", "jaxpipe", *_arguments(config, attempt), *named],
            poll=lock.beat,
        )

    supervised = Run(
        config=config, settings=settings, max_restarts=restarts, start=start, show=_show
    )
    # Over all attempts: another run that began between two of them would mix its steps with ours.
    # No thread touches the lock: this process has to fork.
    with locked(supervised.folder, beats=False) as lock:
        code = supervise(supervised, resume=resume)
    _show_next(code, f"{config}", settings)
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


def _arguments(config: Path, attempt: "Attempt") -> list[str]:
    changes = [word for setting in attempt.settings for word in ("--set", setting)]
    resume = [] if attempt.from_step is None else ["--resume"]
    return ["train", str(config), *changes, *resume, "--supervised"]


def _show(line: str) -> None:
    print(f"\n{line}", flush=True)
