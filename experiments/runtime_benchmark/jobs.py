"""From a task, as `cases.toml` has it, to a job of the runtime, on tokens drawn at random."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import topo
from experiments.runtime_benchmark.plans import plan_of
from jaxpipe.runtime.config import (
    CheckpointConfig,
    CommConfig,
    MeshConfig,
    OptimizerConfig,
    RunConfig,
    TraceConfig,
    TrainConfig,
)
from jaxpipe.runtime.data import Bytes, Dataset
from jaxpipe.runtime.job import Job
from models import GptConfig, train_flops_per_token
from models.gpt import Gpt
from topo import Cluster

_PATIENCE_S = 1800.0


def job_of(task: Mapping[str, Any], cluster: Cluster | None = None) -> Job:
    """Return the job of a task: `model`, `plan`, `batch` and `steps`; it keeps all its spans."""
    model, batch = GptConfig(**task["model"]), task["batch"]
    plan = plan_of(task, cluster or topo.load("laptop"))
    return Job(
        model=Gpt(model),
        plan=plan,
        dataset=random_dataset(model, num_samples=batch),
        run=RunConfig(folder="unused", timeout_s=_PATIENCE_S, startup_timeout_s=_PATIENCE_S),
        train=TrainConfig(steps=task["steps"], batch=batch),
        comm=CommConfig(),
        mesh=MeshConfig(),
        optimizer=OptimizerConfig(),
        loss_scale=None,
        checkpoint=CheckpointConfig(),
        trace=TraceConfig(steps=task["steps"]),
        flops_per_token=float(train_flops_per_token(model, sequence=model.sequence)),
        rank_names=tuple(f"rank {rank}" for rank in range(plan.num_ranks)),
        description={},
    )


def random_dataset(model: GptConfig, *, num_samples: int) -> Dataset:
    """Return tokens enough for some batches, the same everywhere."""
    size = 4 * (num_samples + 1) * (model.sequence + 1)
    tokens = np.random.default_rng(0).integers(0, model.vocabulary, size).astype(np.uint32)
    return Dataset(train=tokens, eval=tokens, tokenizer=Bytes(), source="random")
