"""`jaxpipe evaluate`: the perplexity of a run's model on held-out data, or its scores of tasks."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.cli.option_fields import Fills
from jaxpipe.errors import ConfigError
from jaxpipe.run.terminal.console import console
from jaxpipe.runtime.process.compile_cache import use_compile_cache

if TYPE_CHECKING:  # it takes long to import
    from collections.abc import Iterable

    from jaxpipe.inference.task_scores import TaskScore
    from jaxpipe.runtime.checkpoint import Checkpoint


def evaluate(  # noqa: PLR0913 - each is an option
    run: tyro.conf.Positional[Path],
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FOLDER"), Fills("data.folder")] = (),
    windows: int | None = None,
    tasks: Annotated[str | None, tyro.conf.arg(metavar="NAME,...")] = None,
    task_folder: Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    chat: bool = False,
) -> int:
    """Measure the newest checkpoint of a run: held-out perplexity, or scores of tasks.

    The model is computed on one device, with its adapters merged, if it has some. Tasks are those
    of EleutherAI's lm-evaluation-harness (the extra `harness`), which downloads their data.

    Args:
        run: the folder of a run.
        data: a prepared dataset, a folder or a URL, with the tokenizer of the run; may be repeated;
            by default those of the run.
        windows: the most windows of each dataset, the first ones; by default all.
        tasks: names of tasks, with commas in between, in place of data.
        task_folder: a folder with tasks of your own, as YAML files; with `--tasks`.
        shots: number of examples before each question, by default that of the task.
        limit: the most documents of each task, the first ones; by default all.
        chat: each question is a message of the user, in the chat template of the tokenizer.
    """
    _check_options(
        {"--data": data, "--windows": windows},
        {"--task-folder": task_folder, "--shots": shots, "--limit": limit, "--chat": chat},
        tasks,
    )
    if task_folder is not None and not task_folder.is_dir():
        raise ConfigError(f"`--task-folder` must be a folder, and {task_folder} is none")
    from jaxpipe.runtime.process.jax_backend import check_platforms  # it loads clusters

    check_platforms(os.environ)
    use_compile_cache(os.environ)

    # They import jax, which then uses the cache.
    from jaxpipe.config import place_in
    from jaxpipe.runtime.checkpoint import latest, open_checkpoint

    checkpoint = open_checkpoint(latest(place_in(run)))
    title = f"step {checkpoint.step} of {run}"
    if tasks is None:
        console.print(f"{title}, held-out parts, measured\n", markup=False)
        _print_losses(checkpoint, data, windows)
        return 0
    from jaxpipe.inference.task_scores import task_scores

    console.print(f"{title}, tasks, measured\n", markup=False)
    names = tuple(filter(None, map(str.strip, tasks.split(","))))
    _print_scores(task_scores(checkpoint, names, task_folder, shots=shots, limit=limit, chat=chat))
    return 0


def _print_scores(scores: "Iterable[TaskScore]") -> None:
    for score in scores:
        error = "" if score.error is None else f" +- {score.error:.4f}"
        console.print(
            f"{score.value:10.4f}{error:11}   {score.metric:16}   {score.answers:16}   "
            f"{score.task}",
            markup=False,
        )


def _check_options(
    for_data: dict[str, object], for_tasks: dict[str, object], tasks: str | None
) -> None:
    """Refuse options of the other kind of evaluation, and tasks without the harness."""
    others = for_tasks if tasks is None else for_data
    for name, value in others.items():
        if value not in (None, (), False):
            rule = "needs `--tasks`" if tasks is None else "must be without `--tasks`"
            raise ConfigError(f"`{name}` {rule}; leave out one of them, or add what is missing")
    if tasks is None:
        return
    if not tasks.strip(" ,"):
        raise ConfigError("`--tasks` must name a task, and is empty; `lm-eval ls tasks` lists them")
    if find_spec("lm_eval") is None:
        raise ConfigError(
            "`--tasks` needs EleutherAI's lm-evaluation-harness, which is not installed: pip "
            "install 'jaxpipe[harness]'"
        )


def _print_losses(checkpoint: "Checkpoint", data: tuple[str, ...], windows: int | None) -> None:
    from jaxpipe.config import saved_config
    from jaxpipe.inference.held_out_losses import held_out_losses
    from jaxpipe.runtime.data import dataset_folder

    folders = tuple(map(dataset_folder, data or saved_config(checkpoint).data.folders))
    for losses in held_out_losses(checkpoint, folders, most_windows=windows):
        console.print(
            f"{losses.loss:8.4f} nats per token   perplexity {losses.perplexity:10,.2f}   "
            f"{losses.num_targets:>12,} tokens   {losses.folder}",
            markup=False,
        )
