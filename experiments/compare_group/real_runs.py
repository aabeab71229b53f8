"""One real run: ranks with real compute, over links emulated by the transport or in namespaces."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from experiments.runtime_benchmark.claim import CannotMeasureError
from experiments.spmd_links.links import cached
from jaxpipe.compare.measured import read_measured
from jaxpipe.compare.system import System
from jaxpipe.plan import Plan, write_plan
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.process.mpirun import MEMORY_SETTINGS, find_mpirun, launch_command
from topo import Cluster
from topo.emulate import EmulationError, EngineKind, emulated
from topo.write import cluster_toml

_TIMEOUT_S = 900.0


class Links(StrEnum):
    """What stands for the network."""

    SHAPED = "transport"
    """jaxpipe's shaped transport: each message is late by its latency and its bytes."""
    NAMESPACES = "namespaces"
    """A network namespace to a host; a relay delays and paces packets, whosever they are."""
    NO_LATENCY = "namespaces, no latency"
    """The same with bandwidths alone, by the kernel's htb."""


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


def run_pipeline(bench: Bench, plan: Plan, *, folder: Path, links: Mapping[str, str] | None) -> Run:
    """Train by a plan over the links of namespaces, or over the shaped transport where None.

    The trace and the timeline stay in `folder`.

    Raises:
        RuntimeError: a rank failed; it says what they printed.
    """
    settings = _settings(bench, plan)
    settings |= {"run.folder": str(folder), "train.steps": str(bench.steps)}
    if links is None:
        settings |= {"run.transport": "shaped"}
    arguments = ["train", str(bench.config), *_set(settings)]
    _run(arguments, plan.num_ranks, cached(bench.cache) | dict(links or {}))
    steps = read_metrics(folder / "metrics.jsonl")
    return Run(
        losses=tuple(step.loss for step in steps), step_s=tuple(step.step_s for step in steps)
    )


def run_zero3(bench: Bench, plan: Plan, *, links: Mapping[str, str]) -> Run:
    """Train as one sharded program over the namespaces of a plan's ranks.

    Nothing is read from a cache: whoever finds its program there is too early for gloo, which gives
    all ranks 30 s to meet.

    Raises:
        RuntimeError: a rank failed; it says what they printed.
    """
    folder = bench.scratch / "zero3"
    arguments = ["compare", str(bench.config), "--rank-of", System.ZERO3.value]
    arguments += _set(_settings(bench, plan))
    arguments += ["--steps", str(bench.steps), "--out", str(folder)]
    _run(arguments, plan.num_ranks, {"JAX_PLATFORMS": "cpu"} | dict(links))
    steps = read_measured(folder, System.ZERO3).steps
    return Run(
        losses=tuple(step.loss for step in steps), step_s=tuple(step.step_s for step in steps)
    )


@contextmanager
def in_namespaces(cluster: Cluster, plan: Plan, links: Links) -> Iterator[Mapping[str, str]]:
    """Make a namespace for each host; yield the settings that put a plan's ranks where it says.

    Raises:
        CannotMeasureError: there are no rights or no programs to do so.
    """
    devices = [plan.device(rank) for rank in range(plan.num_ranks)]
    kind = EngineKind.HTB if links is Links.NO_LATENCY else EngineKind.RELAY
    try:
        with emulated(cluster, kind=kind, devices=devices) as emulation:
            yield emulation.settings
    except (ValueError, EmulationError) as error:
        raise CannotMeasureError(str(error)) from error


def _run(arguments: Sequence[str], num_ranks: int, environment: Mapping[str, str]) -> None:
    start = launch_command(find_mpirun(), num_ranks=num_ranks)
    done = subprocess.run(
        [*start, sys.executable, "-m", "jaxpipe", *arguments],
        env=os.environ | MEMORY_SETTINGS | dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(
            f"{done.args} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def _settings(bench: Bench, plan: Plan) -> dict[str, str]:
    bench.cluster_file.write_text(cluster_toml(bench.cluster))
    plan_file = bench.scratch / "plan.toml"
    write_plan(plan, bench.cluster, plan_file)
    return {"plan.cluster": str(bench.cluster_file), "plan.file": str(plan_file)}


def _set(settings: Mapping[str, str]) -> Sequence[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
