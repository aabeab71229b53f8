"""Runs of pipelines and of one device, which several claims compare."""

from collections.abc import Mapping
from typing import Any

from experiments.runtime_benchmark.claim import Bench
from experiments.runtime_benchmark.processes import run_ranks

NUM_RANKS = 2


def tokens_per_step(bench: Bench) -> int:
    """Return how many tokens a step trains on."""
    return bench.cases["work"]["batch"] * bench.cases["model"]["sequence"]


def run_pipeline(bench: Bench, *, schedule: str) -> Any:
    """Train with one rank to a core; return what `programs.pipeline` measures."""
    work = bench.cases["work"]
    plan = {"stages": NUM_RANKS, "cut": work["cut"], "schedule": schedule}
    return run_ranks("pipeline", task(bench, plan), num_ranks=NUM_RANKS)


def run_one_device(bench: Bench, *, form: str) -> Any:
    """Train on one core; return what `programs.one_device` measures."""
    plan = {"stages": 1, "schedule": "gpipe"}
    return run_ranks("one_device", task(bench, plan) | {"form": form}, num_ranks=1)


def task(bench: Bench, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a program that trains: the first step warms up."""
    work = bench.cases["work"]
    return {
        "model": bench.cases["model"],
        "plan": {"replicas": 1, "microbatch": work["microbatch"]} | dict(plan),
        "batch": work["batch"],
        "steps": work["steps"] + 1,
    }
