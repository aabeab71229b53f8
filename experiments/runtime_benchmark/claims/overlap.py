"""Steps over emulated links at the compute to communication of case 5, beside their simulation.

Computes are paced and links shaped; order, messages, sums and overlap are the runtime's own. The
simulator gets the same programs, the same links, and the computes as the trace says they went.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.plans import emulated_cluster, plan_of
from experiments.runtime_benchmark.processes import run_ranks
from experiments.runtime_benchmark.tables import grouped, numbers
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.simulate import Conditions, plan_step_s
from models import GptConfig, activation_bytes, num_parameters

Span = Mapping[str, Any]


def measure(bench: Bench) -> list[Row]:
    """Return a row for each measured step of each schedule."""
    case, rows = bench.cases["overlap"], []
    for number in range(case["rounds"]):
        for chosen in case["schedules"]:
            columns = {"round": number, "schedule": chosen["schedule"]}
            rows += bench.once(columns, partial(_steps, _task(case, chosen)))
    return rows


def _steps(task: Mapping[str, Any]) -> list[Row]:
    plan = plan_of(task, emulated_cluster(task))
    result = run_ranks("paced", task, num_ranks=plan.num_ranks)
    return [_row(task, plan, result, step) for step in range(1, len(result["step_s"]))]


def _task(case: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each rank is told; a stage of several to a rank takes its part of the seconds."""
    chunks = chosen.get("chunks", 1)
    forward_s, backward_s = (
        case["time_scale"] * case[name] / chunks for name in ("forward_s", "backward_s")
    )
    plan = {
        "stages": case["ranks_per_pipeline"] * chunks,
        "replicas": case["replicas"],
        "microbatch": 1,
        **chosen,
    }
    return {
        **case,
        "plan": plan,
        "batch": case["microbatches"] * case["replicas"],
        "steps": case["steps"] + 1,
        "seconds": {
            "forward": forward_s,
            "backward": backward_s,
            "backward-input": backward_s / 2,
            "backward-weight": backward_s / 2,
        },
    }


def _row(task: Mapping[str, Any], plan: Plan, result: Any, step: int) -> dict[str, Any]:
    spans = [span for span in result["spans"] if span["step"] == step]
    told = [(task["seconds"]["forward"], task["seconds"]["backward"])] * plan.num_stages
    went = [_went(spans, stage) for stage in range(plan.num_stages)]
    step_s = result["step_s"][step]
    predicted_s = plan_step_s(plan, _conditions(task, plan, went))
    return {
        "schedule": task["plan"]["schedule"],
        "step": step,
        "step_s": step_s,
        "simulated_s": predicted_s,
        "simulated_as_told_s": plan_step_s(plan, _conditions(task, plan, told)),
        "ratio": step_s / predicted_s,
        "sum_s": max(_lasts(span) for span in _sums(spans)),
        "hidden": _hidden(spans),
        "hidden_by_own_compute": _hidden_by_own(spans),
    }


def _went(spans: Sequence[Span], stage: int) -> tuple[float, float]:
    """Return the mean seconds of a forward and of a whole backward of a stage, as measured."""
    mine = [span for span in spans if span["lane"] == "compute" and span["stage"] == stage]
    forwards = [_lasts(span) for span in mine if span["name"] == "forward"]
    backwards = [_lasts(span) for span in mine if span["name"] != "forward"]
    return fmean(forwards), sum(backwards) / len(forwards)


def _conditions(
    task: Mapping[str, Any], plan: Plan, seconds: Sequence[tuple[float, float]]
) -> Conditions:
    model = GptConfig(**task["model"])
    per_stage = model.num_layers // plan.num_stages
    layer = num_parameters(model, layers=1, embed=False, head=False)
    cluster = emulated_cluster(task)
    profile = Profile(
        device="paced",
        flops_per_s=1.0,
        microbatch=1,
        activation_bytes=activation_bytes(model, batch=1, sequence=model.sequence),
        embed=Part(parameters=num_parameters(model, layers=0, embed=True, head=False)),
        layers=tuple(
            Part(forward_s=f / per_stage, backward_s=b / per_stage, parameters=layer)
            for f, b in seconds
            for _ in range(per_stage)
        ),
        head=Part(parameters=num_parameters(model, layers=0, embed=False, head=True)),
    )
    return Conditions(
        cluster=cluster, profile=profile, slow=np.ones(len(cluster)), gradient_bytes=4
    )


def _hidden(spans: Sequence[Span]) -> float:
    """Return the part of the sums' seconds that is over before the last backward of any rank."""
    last_s = max(span["end_s"] for span in spans if span["lane"] == "compute")
    sums = _sums(spans)
    before_s = sum(max(0.0, min(s["end_s"], last_s) - s["start_s"]) for s in sums)
    return before_s / sum(_lasts(span) for span in sums)


def _hidden_by_own(spans: Sequence[Span]) -> float:
    """Return the part of the sums' seconds in which their own rank computes."""
    computes = [span for span in spans if span["lane"] == "compute"]
    sums = _sums(spans)
    together_s = sum(
        max(0.0, min(each["end_s"], other["end_s"]) - max(each["start_s"], other["start_s"]))
        for each in sums
        for other in computes
        if each["rank"] == other["rank"]
    )
    return together_s / sum(_lasts(span) for span in sums)


def _sums(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if span["name"] == "reduce stage"]


def _lasts(span: Span) -> float:
    return span["end_s"] - span["start_s"]


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for each schedule."""
    columns = ("step_s", "simulated_s", "ratio", "sum_s", "hidden", "hidden_by_own_compute")
    return [
        {
            "schedule": schedule,
            "steps": len(rows),
            **{column: median(numbers(rows, column)) for column in columns},
            "aim": 1.10,
        }
        for (schedule,), rows in grouped(raw, "schedule").items()
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the ratio of every step."""
    bars(
        {
            schedule: numbers(rows, "ratio")
            for (schedule,), rows in grouped(raw, "schedule").items()
        },
        path,
        title="Step over its simulation, links of case 5 (emulated; a dot is a step; dashed: aim)",
        unit="ratio",
        aim=1.10,
    )


OVERLAP = Claim(
    aim="over emulated links of case 5 a step takes at most 1.10 of its simulation",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
