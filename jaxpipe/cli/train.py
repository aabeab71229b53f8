"""`jaxpipe train`: trains a model; starts the ranks, or is one of them if an MPI has started it.

`python -m jaxpipe.cli.train CONFIG REQUEST` is an attempt, or a rank, that jaxpipe starts. The
options of the command are those of its users; what a launcher or a supervisor tells the processes
that it starts is a `TrainRequest`.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.cli.main import with_exit_code
from jaxpipe.cli.option_fields import Fills
from jaxpipe.errors import ConfigError, RunError
from jaxpipe.run.terminal.console import set_words
from jaxpipe.runtime.process.launched_rank import launched_rank
from jaxpipe.runtime.run_config import AllowedChange, ComputeKind, TransportKind

if TYPE_CHECKING:  # it imports plans, which `--help` can do without
    from jaxpipe.run.train_request import TrainRequest

_MOST_VERIFY_S = 1800.0


def train(  # noqa: PLR0913  each is an option of the command line
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    resume: bool = False,
    start: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER")] = None,
    allow_changed: tuple[AllowedChange, ...] = (),
    check: bool = False,
    verify: bool = False,
    compute: Annotated[ComputeKind | None, Fills("run.compute")] = None,
    transport: Annotated[TransportKind | None, Fills("run.transport")] = None,
    hooks: tyro.conf.Suppress[str | None] = None,
) -> int:
    """Train a model on this host, or on the ranks of the `mpirun` that starts this command.

    The folder of the run holds its plan (plan.toml), metrics (metrics.jsonl), checkpoints and the
    trace of its last steps (trace.json).

    Args:
        config: a TOML file.
        settings: a change to it, such as `train.steps=10`; may be repeated.
        resume: continue from the newest intact checkpoint in the folder of the run.
        start: begin with the parameters of an import, or of another run: those of its newest
            checkpoint, with adapters merged. Steps and moments are new.
        allow_changed: what may differ from that checkpoint: `data`, the samples and their order,
            which then begins at its first sample.
        check: check configuration, data and checkpoint, draw the plan, and start nothing.
        verify: run `jaxpipe verify` first, and start nothing if its verdict is bad.
        compute: `paced` waits instead of computing, over emulated links: any model on any machine.
            Replaces `run.compute`.
        transport: how messages travel; `shaped` delays them as the links of the cluster would.
            Replaces `run.transport`.
        hooks: for fault injection, not among the options: the MODULE:FUNCTION that returns the
            `jaxpipe.runtime.hooks.Hooks` of a rank, called in each with the configuration's path
            and `rank`.
    """
    from jaxpipe.run.start import check_training, start_training
    from jaxpipe.run.train_request import TrainRequest

    replaced = {"run.compute": compute, "run.transport": transport}
    # At the end, where they win over `--set`.
    settings += tuple(f"{key}={kind}" for key, kind in replaced.items() if kind is not None)
    request = TrainRequest(
        config=config,
        settings=settings,
        resume=resume,
        allow_changed=allow_changed,
        hooks=hooks,
    )
    if verify and (code := _verified(request)):
        return code
    if start is not None:
        request = _started(request, start, only_check=check)
    if check:
        check_training(request)
        return 0
    return start_training(request)


def _started(request: "TrainRequest", source: Path, *, only_check: bool) -> "TrainRequest":
    """Begin a run with the parameters of another; return the request that resumes from there.

    Raises:
        UserError: it cannot begin with these.
    """
    from jaxpipe.config import load_config
    from jaxpipe.run.folder.prepare_run import prepare
    from jaxpipe.run.folder.start_from import check_start_from, start_from

    if request.resume:
        raise ConfigError(
            "`--from` begins a run, and `--resume` continues one; leave out one of them"
        )
    config = load_config(request.config, request.settings, notice=None)
    is_import = Path(config.run.folder).resolve() == source.resolve()
    here = launched_rank(os.environ)
    if here is None or here.rank == 0:  # the others wait for rank 0, which reads the checkpoint
        checkpoint = check_start_from(config, source)
        if not is_import and not only_check:
            # All that the run will read, before anything is written.
            prepare(config, resume=False, num_ranks=None if here is None else here.num_ranks)
            start_from(config, source, checkpoint)
    if only_check:
        return replace(request, resume=is_import)
    return replace(request, resume=True)


def _verified(request: "TrainRequest") -> int:
    """Run `jaxpipe verify` in a process of its own, whose flags of XLA no rank may have.

    Raises:
        ConfigError: an MPI has started this process, and others that would do the same.
        RunError: it did not end in time.
    """
    if launched_rank(os.environ) is not None:
        raise ConfigError(
            "`--verify` is for the command that starts the ranks; run `jaxpipe verify` before "
            "`mpirun`"
        )
    words = [str(request.config), *set_words(request.settings)]
    command = [sys.executable, "-P", "-m", "jaxpipe", "verify", *words]
    try:
        return subprocess.run(command, check=False, timeout=_MOST_VERIFY_S).returncode
    except subprocess.TimeoutExpired as error:
        raise RunError(f"`jaxpipe verify` did not end within {_MOST_VERIFY_S:.0f} s") from error


if __name__ == "__main__":
    from jaxpipe.run.start import start_training
    from jaxpipe.run.train_request import TrainRequest

    sys.exit(with_exit_code(lambda: start_training(TrainRequest.of_words(sys.argv[1:]))))
