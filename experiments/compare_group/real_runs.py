"""One run with real compute, over links emulated by the transport or in namespaces."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from experiments.emulated_links import namespaces
from experiments.spmd_links.links import cached
from jaxpipe.baselines.compare.measured import read_measured
from jaxpipe.baselines.systems import System
from jaxpipe.plan import Plan, write_plan
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.topo import Cluster
from jaxpipe.topo.emulate import EngineKind
from jaxpipe.topo.write import cluster_toml

_TIMEOUT_S = 900.0


class Links(StrEnum):
    """What emulates the network."""

    SHAPED = "transport"
    """jaxpipe's shaped transport, which delays each message by latency and bandwidth."""
    NAMESPACES = "namespaces"
    """A network namespace per host; a relay delays and paces all packets."""
    NO_LATENCY = "namespaces, no latency"
    """Namespaces with bandwidths only, shaped by the kernel's htb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The losses, in nats per token, and the seconds of the steps of a run."""

    losses: tuple[float, ...]
    step_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The cluster of scaled links, the configuration, and a scratch folder for runs."""

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
        """The cache of compiled programs, which are equal in all runs of a setting."""
        return self.scratch / "cache"


def run_pipeline(bench: Bench, plan: Plan, *, folder: Path, links: Mapping[str, str] | None) -> Run:
    """Train by a plan over `links` of namespaces, or, if None, over the shaped transport.

    The trace and the timeline stay in `folder`.

    Raises:
        RuntimeError: a rank failed; the message has the output.
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

    There is no compilation cache: gloo gives all ranks 30 s to connect, and a rank with a cache hit
    would start waiting long before the others have compiled.

    Raises:
        RuntimeError: a rank failed; the message has the output.
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


def in_namespaces(
    cluster: Cluster, plan: Plan, links: Links
) -> AbstractContextManager[Mapping[str, str]]:
    """Make a namespace per host; give the environment that places the ranks of a plan on them.

    Raises:
        CannotMeasureError: privileges or programs are missing.
    """
    devices = [plan.device(rank) for rank in range(plan.num_ranks)]
    kind = EngineKind.HTB if links is Links.NO_LATENCY else EngineKind.RELAY
    return namespaces(cluster, kind=kind, devices=devices)


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
