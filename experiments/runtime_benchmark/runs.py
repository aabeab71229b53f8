"""Tasks and the processes that run them.

A task is JSON: sizes from `cases.toml`, with a plan. `plan_of` and `job_of` turn it into a plan and
a job of the runtime on random tokens; `run_ranks` and `run_torch` start the processes. Each process
gets a folder with `task.json`, and rank 0 writes `result.json` there.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.emulated_links import CannotMeasureError
from jaxpipe import topo
from jaxpipe.models import GptConfig, activation_bytes, train_flops_per_token
from jaxpipe.models.gpt import Gpt
from jaxpipe.plan import Plan, PlanConfig, default_plan
from jaxpipe.runtime.config import (
    CheckpointConfig,
    CommConfig,
    TraceConfig,
    TrainConfig,
)
from jaxpipe.runtime.data import Bytes, Dataset, mixture_of
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.run_config import RunConfig
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo import Cluster

_PROGRAMS = "experiments.runtime_benchmark.programs"
_ROOT = Path(__file__).parents[2]
_RUN_TIMEOUT_S = 3600.0
_MESSAGE_TIMEOUT_S = 1800.0


def plan_of(task: Mapping[str, Any], cluster: Cluster) -> Plan:
    """Return the plan of a task: `model`, `plan` and `batch`."""
    model = GptConfig(**task["model"])
    given = task["plan"] | {"schedule": ScheduleKind(task["plan"]["schedule"])}
    if "cut" in given:
        given["cut"] = tuple(given["cut"])
    return default_plan(
        PlanConfig(**given),
        cluster,
        num_layers=model.num_layers,
        batch=task["batch"],
        tied=model.tied,
    )


def emulated_cluster(task: Mapping[str, Any]) -> Cluster:
    """Return the `devices` of a cluster, slowed down `time_scale` times, for small messages.

    An activation of the task's model stands for one of `activation_bytes`: bandwidths shrink by the
    ratio of the two, so that it takes as long.
    """
    whole, model = topo.load(task["cluster"]), GptConfig(**task["model"])
    sent = activation_bytes(model, batch=task["plan"]["microbatch"], sequence=model.sequence)
    slower = task["time_scale"] * task["activation_bytes"] / sent
    both = np.ix_(task["devices"], task["devices"])
    return Cluster(
        name=f"{whole.name}-emulated",
        devices=tuple(whole.devices[device] for device in task["devices"]),
        latency_s=task["time_scale"] * whole.latency_s[both],
        bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s[both] / slower,
    )


def job_of(task: Mapping[str, Any], cluster: Cluster | None = None) -> Job:
    """Return the job of a task: `model`, `plan`, `batch` and `steps`. It keeps all its spans."""
    model, batch = GptConfig(**task["model"]), task["batch"]
    plan = plan_of(task, cluster or topo.load("laptop"))
    timeout_s = _MESSAGE_TIMEOUT_S
    return Job(
        model=Gpt(model),
        plan=plan,
        data=mixture_of(
            [_random_dataset(model, num_samples=batch)], (1.0,), sequence=model.sequence
        ),
        run=RunConfig(folder="unused", timeout_s=timeout_s, startup_timeout_s=timeout_s),
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


def _random_dataset(model: GptConfig, *, num_samples: int) -> Dataset:
    """Return tokens for a few batches, equal on all ranks."""
    size = 4 * (num_samples + 1) * (model.sequence + 1)
    tokens = np.random.default_rng(0).integers(0, model.vocabulary, size).astype(np.uint32)
    return Dataset(train=tokens, eval=tokens, tokenizer=Bytes(), source="random")


def run_ranks(
    program: str,
    task: Mapping[str, Any],
    *,
    num_ranks: int,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Run a program as `num_ranks` MPI ranks and return the result of rank 0.

    Each rank has a core of its own if there are enough. `settings` are added to the environment,
    for options that XLA reads nowhere else.
    """
    command = [*_launcher(num_ranks), sys.executable, "-m", f"{_PROGRAMS}.{program}"]
    return run_commands([command], task, settings)


def run_torch(
    python: Path,
    task: Mapping[str, Any],
    *,
    num_ranks: int,
    hosts: Sequence[Sequence[str]] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Run the PyTorch program with another Python: a process per rank, each on its own core.

    `hosts[rank]` is the prefix of a command that runs it on a host, for emulated networks.
    """
    program = str(Path(__file__).parent / "programs" / "torch_pipeline.py")
    commands = [
        [*host, str(python), program, "--rank", str(rank), "--num-ranks", str(num_ranks)]
        for rank, host in enumerate(hosts or [()] * num_ranks)
    ]
    return run_commands(commands, task, settings)


def check_cores(*, needed: int) -> None:
    """Check that every rank can have a core of its own.

    Raises:
        CannotMeasureError: there are fewer than `needed` cores.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < needed:
        raise CannotMeasureError(f"it needs at least {needed} cores, not {cores}")


@cache
def _launcher(num_ranks: int) -> tuple[str, ...]:
    return launch_command(find_mpirun(), num_ranks=num_ranks)


def run_commands(
    commands: Sequence[Sequence[str]],
    task: Mapping[str, Any],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Run commands at the same time, each followed by the folder of the task; return the result.

    All of them, the PyTorch program included, get the memory settings of `jaxpipe train`.

    Raises:
        RuntimeError: a command failed; the message has its output.
    """
    # MPICH polls without yielding by default, which starves ranks that share a core.
    environment = os.environ | MEMORY_SETTINGS | {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "task.json").write_text(json.dumps(task))
        processes = [
            subprocess.Popen(
                [*command, folder],
                cwd=_ROOT,
                env=environment | dict(settings),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for command in commands
        ]
        for process in processes:
            output, _ = process.communicate(timeout=_RUN_TIMEOUT_S)
            if process.returncode:
                raise RuntimeError(f"{process.args} exited with {process.returncode}:\n{output}")
        return json.loads((Path(folder) / "result.json").read_text())
