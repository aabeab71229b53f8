"""`jaxpipe run`: trains, and starts again after a failure."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from jaxpipe.run import Attempt


def run(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    resume: bool = False,
    restarts: int = 3,
    rank_module: str = "jaxpipe",
) -> int:
    """Train a model on this host, and go on from the newest intact checkpoint after a failure.

    Ranks that are lost twice from the same checkpoint are taken to be gone: the next attempt has
    fewer of them, and a new plan.

    Args:
        config: a TOML file.
        settings: changes to it, such as `train.steps=10`; give it once for each.
        resume: begin with the newest checkpoint in the run's folder.
        restarts: how many times to start again, at most.
        rank_module: as in `jaxpipe train`.
    """
    from jaxpipe.errors import ConfigError
    from jaxpipe.run import Run, supervise
    from jaxpipe.runtime.process.mpirun import run_child

    if restarts < 0:
        raise ConfigError(f"`--restarts` must not be negative, is {restarts}; 0 starts once")

    def start(attempt: "Attempt") -> int:
        words = (*_arguments(config, attempt), "--rank-module", rank_module)
        return run_child([sys.executable, "-m", "jaxpipe", *words])

    supervised = Run(config=config, settings=settings, max_restarts=restarts, start=start, say=_say)
    code = supervise(supervised, resume=resume)
    if code not in (0, 2):
        changes = "".join(f" --set {setting}" for setting in settings)
        _say(f"next: jaxpipe run {config}{changes} --resume")
    return code


def _arguments(config: Path, attempt: "Attempt") -> list[str]:
    changes = [word for setting in attempt.settings for word in ("--set", setting)]
    resume = [] if attempt.from_step is None else ["--resume"]
    return ["train", str(config), *changes, *resume]


def _say(line: str) -> None:
    print(f"\n{line}", flush=True)
