"""Trains a tiny model on the `local` transport, from a configuration to the files of the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from jaxpipe.comm import run_ranks
from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.train import train
from tests.runtime.compiled_once import compile_stage_once

Tree = dict[str, dict[str, Any]]


def write_dataset(folder: Path) -> Path:
    """Prepare a small text of our own."""
    text = folder / "text.txt"
    text.write_text("".join(f"{i} plus {i} is {2 * i}; " for i in range(400)))
    prepare(Source(path=text), folder / "dataset")
    return folder / "dataset"


def tiny_tree(run: Path, dataset: Path, /, **sections: dict[str, Any]) -> Tree:
    """Return a configuration of 2 stages x 2 replicas, changed by `sections`.

    Its layers are scanned, which compiles faster.
    """
    tree: Tree = {
        "run": {"folder": str(run), "seed": 1, "timeout_s": 60.0, "pictures": False},
        "data": {"folder": str(dataset)},
        "model": {
            "num_layers": 3,
            "dim": 16,
            "num_heads": 2,
            "sequence": 16,
            "vocabulary": 256,
        },
        "plan": {
            "cluster": "laptop",
            "stages": 2,
            "replicas": 2,
            "microbatch": 1,
            "schedule": "1f1b",
        },
        "train": {"steps": 4, "batch": 8, "eval_every": 2, "eval_batches": 1, "loop": "scan"},
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 1},
        "checkpoint": {"every": 2, "keep": 3},
        "sample": {"tokens": 0},
    }
    return {name: {**tree.get(name, {}), **sections.get(name, {})} for name in {**tree, **sections}}


def small_tree(run: Path, dataset: Path, /, **sections: dict[str, Any]) -> Tree:
    """Return such a configuration with a layer in each stage, which compiles fastest."""
    return tiny_tree(
        run, dataset, **{**sections, "model": {"num_layers": 2, **sections.get("model", {})}}
    )


def run_tree(
    tree: Tree,
    *,
    resume: bool = False,
    compile_stage: Callable[..., CompiledStage] = compile_stage_once,
) -> list[StepMetrics]:
    """Train as all ranks of the configuration, in threads, and return the metrics file.

    What another run of this process has compiled is not compiled again.
    """
    config = config_from(tree)
    plan = plan_from(config)
    job = job_from(config, plan)
    checkpoint = open_checkpoint(latest(job.folder)) if resume else None
    with patch.object(worker, "compile_stage", compile_stage):
        run_ranks(
            plan.num_ranks,
            lambda transport: train(job, transport, checkpoint=checkpoint, observe=lambda _: None),
        )
    return read_metrics(job.metrics_file)
