"""Scores of a checkpoint on tasks of EleutherAI's lm-evaluation-harness, an extra."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from jaxpipe.config import saved_config
from jaxpipe.errors import ConfigError
from jaxpipe.inference.harness_model import CheckpointModel
from jaxpipe.runtime.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """A metric of a task, and its standard error; None where the harness knows none."""

    task: str
    metric: str
    answers: str
    """How the harness picks an answer out of a text: `none` takes all of it."""
    value: float
    error: float | None


def task_scores(
    checkpoint: Checkpoint,
    tasks: Sequence[str],
    folder: Path | None = None,
    *,
    shots: int | None = None,
    limit: int | None = None,
    chat: bool = False,
) -> list[TaskScore]:
    """Return the scores of tasks of the harness, or of those that YAML files in `folder` define.

    `shots` examples stand before each question, by default as many as the task says; `limit` is the
    most documents of a task. With `chat`, questions are messages in the chat template.

    Raises:
        CheckpointError: the checkpoint is corrupt.
        ConfigError: there is no such task, the model cannot answer it, or has no chat template.
        DataError: the tokenizer is missing.
    """
    manager = _manager(tasks, folder)
    loaded = _loaded(manager, tasks)
    model = CheckpointModel(checkpoint)
    if chat and model.template is None:
        raise ConfigError(
            "`--chat` needs a tokenizer with a chat template, and that of the run has none; leave "
            "it out"
        )
    precision = saved_config(checkpoint).run.matmul_precision
    with jax.default_matmul_precision(precision.jax_name):
        results = simple_evaluate(
            model=model,
            tasks=loaded,
            num_fewshot=shots,
            limit=limit,
            task_manager=manager,
            apply_chat_template=chat,
            log_samples=False,
        )
    assert results is not None, tasks  # only other ranks of its own get none
    return list(_scores(results.get("results", {})))


def _manager(tasks: Sequence[str], folder: Path | None) -> TaskManager:
    """Return what knows these tasks: those of the folder alone if they suffice.

    The index of the harness has more than ten thousand files, and takes ten seconds.
    """
    path = None if folder is None else str(folder)
    manager = TaskManager(include_path=path, include_defaults=False)
    if not {*tasks} <= {*manager.all_tasks}:
        manager = TaskManager(include_path=path)
    if unknown := sorted({*tasks} - {*manager.all_tasks}):
        raise ConfigError(
            f"`--tasks` must name tasks of the harness, not {', '.join(unknown):.100}; `lm-eval ls "
            "tasks` lists them, and `--task-folder` adds those of your YAML files"
        )
    return manager


def _loaded(manager: TaskManager, tasks: Sequence[str]) -> list[Any]:
    """Return the tasks and groups of tasks with their data."""
    loaded: list[Any] = []
    for name in dict.fromkeys(tasks):
        try:
            known = manager.load([name])
        except Exception as error:  # of YAML, of the network, of the library datasets
            raise ConfigError(
                f"`--tasks` {name} cannot be loaded by the harness: {type(error).__name__}, "
                f"{error!s:.200}; correct its YAML, or make its data available"
            ) from error
        group = known.get("groups", {}).get(name)
        loaded += known.get("tasks", {}).values() if group is None else [group]
    return loaded


def _scores(results: Mapping[str, Mapping[str, Any]]) -> Iterator[TaskScore]:
    for task, values in results.items():
        for name, value in values.items():
            metric, _, answers = name.partition(",")
            if not answers or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{answers}")
            yield TaskScore(
                task=task,
                metric=metric,
                answers=answers,
                value=float(value),
                error=float(error) if isinstance(error, int | float) else None,
            )
