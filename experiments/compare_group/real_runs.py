"""One real run: ranks with real compute, over links delayed in the transport or by the kernel."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from experiments.compare_group.part import part
from experiments.runtime_benchmark.namespaces import joined
from experiments.spmd_links.links import cached, run_linked
from jaxpipe.compare.measured import read_measured
from jaxpipe.compare.system import System
from jaxpipe.plan import Plan, write_plan
from jaxpipe.runtime.launch import MEMORY_SETTINGS, find_mpirun, launch_command
from jaxpipe.runtime.metrics import read_metrics
from topo import Cluster
from topo.write import cluster_toml


class Links(StrEnum):
    """What stands for the network."""

    SHAPED = "transport: latency and bandwidth"
    """jaxpipe's shaped transport: each message is late by its latency and its bytes."""
    KERNEL = "kernel: bandwidth"
    """Network namespaces whose links the kernel's token bucket shapes; no latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run has measured: losses in nats per token, and seconds, of each step."""

    losses: tuple[float, ...]
    step_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where runs are done: the cluster of scaled links, the configuration, and a scratch folder."""

    cluster: Cluster
    config: Path
    steps: int
    scratch: Path

    @property
    def cluster_file(self) -> Path:
        """The file of the cluster."""
        return self.scratch / f"{self.cluster.name}.toml"

    @property
    def cache(self) -> Path:
        """Where compiled programs are kept: all runs of a setting have the same ones."""
        return self.scratch / "cache"


def run_shaped(bench: Bench, plan: Plan, *, folder: Path) -> Run:
    """Train over the shaped transport; the trace and the timeline stay in `folder`.

    Raises:
        RuntimeError: a rank failed; it says what they printed.
    """
    settings = _settings(bench, plan)
    settings |= {"run.folder": str(folder), "run.transport": "shaped"}
    settings |= {"train.steps": str(bench.steps)}
    command = [
        *launch_command(find_mpirun(), num_ranks=plan.num_ranks),
        *(sys.executable, "-m", "jaxpipe", "train", str(bench.config)),
        *_set(settings),
    ]
    environment = os.environ | MEMORY_SETTINGS | cached(bench.cache)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        raise RuntimeError(f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    steps = read_metrics(folder / "metrics.jsonl")
    return Run(
        losses=tuple(step.loss for step in steps), step_s=tuple(step.step_s for step in steps)
    )


@contextmanager
def in_namespaces(cluster: Cluster, plan: Plan) -> Iterator[Mapping[str, str]]:
    """Make a namespace for each rank of a plan, with the links of its device; yield its settings.

    Raises:
        CannotMeasureError: there are no rights or no programs to do so.
    """
    with joined(part(cluster, [plan.device(rank) for rank in range(plan.num_ranks)])) as links:
        yield links


def run_kernel(
    bench: Bench, plan: Plan, system: System, *, python: Path, links: Mapping[str, str]
) -> Run:
    """Train in the namespaces of a plan: the plan itself, or one program on all its ranks.

    Raises:
        RuntimeError: a rank failed; it says what they printed.
    """
    folder = bench.scratch / "kernel"
    arguments = ["compare", str(bench.config), "--rank-of", system.value]
    arguments += _set(_settings(bench, plan))
    arguments += ["--steps", str(bench.steps), "--out", str(folder)]
    run_linked(python, arguments, links=links, cache=bench.cache, num_ranks=plan.num_ranks)
    steps = read_measured(folder, system).steps
    return Run(
        losses=tuple(step.loss for step in steps), step_s=tuple(step.step_s for step in steps)
    )


def _settings(bench: Bench, plan: Plan) -> dict[str, str]:
    bench.cluster_file.write_text(cluster_toml(bench.cluster))
    plan_file = bench.scratch / "plan.toml"
    write_plan(plan, bench.cluster, plan_file)
    return {"plan.cluster": str(bench.cluster_file), "plan.file": str(plan_file)}


def _set(settings: Mapping[str, str]) -> Sequence[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
