"""Steps over emulated links at case 5's ratio of compute to communication, and their simulation.

Computes are paced and links shaped; order, messages, all-reduces and overlap are the runtime's own.
The simulator gets the same programs and links, and the compute times of the trace.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np

from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.runs import emulated_cluster, plan_of, run_ranks
from experiments.table import Row, grouped, numbers
from jaxpipe.models import GptConfig, activation_bytes, num_parameters
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import Part, Profile
from jaxpipe.simulate import Conditions, plan_step_s

Span = Mapping[str, Any]


def measurements(bench: Bench) -> list[Measurement]:
    """Return a part per round and schedule: a row per measured step."""
    case = bench.cases["overlap"]
    return [
        Measurement(
            columns={"round": number, "schedule": chosen["schedule"]},
            measure=partial(_steps, _task(case, chosen)),
        )
        for number in range(case["rounds"])
        for chosen in case["schedules"]
    ]


def _steps(task: Mapping[str, Any]) -> list[Row]:
    plan = plan_of(task, emulated_cluster(task))
    result = run_ranks("pipeline", task, num_ranks=plan.num_ranks)
    return [_row(task, plan, result, step) for step in range(1, len(result["step_s"]))]


def _task(case: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a schedule; virtual stages of a rank divide its compute time evenly."""
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
        "paced_s": {
            "forward": forward_s,
            "backward": backward_s,
            "backward-input": backward_s / 2,
            "backward-weight": backward_s / 2,
        },
    }


def _row(task: Mapping[str, Any], plan: Plan, result: Any, step: int) -> dict[str, Any]:
    spans = [span for span in result["spans"] if span["step"] == step]
    nominal = [(task["paced_s"]["forward"], task["paced_s"]["backward"])] * plan.num_stages
    measured = [_compute_s(spans, stage) for stage in range(plan.num_stages)]
    step_s = result["step_s"][step]
    predicted_s = plan_step_s(plan, _conditions(task, plan, measured))
    return {
        "schedule": task["plan"]["schedule"],
        "step": step,
        "step_s": step_s,
        "simulated_s": predicted_s,
        "simulated_nominal_s": plan_step_s(plan, _conditions(task, plan, nominal)),
        "ratio": step_s / predicted_s,
        "all_reduce_s": max(_lasts(span) for span in _all_reduces(spans)),
        "hidden": _hidden(spans),
        "hidden_by_own_compute": _hidden_by_own(spans),
    }


def _compute_s(spans: Sequence[Span], stage: int) -> tuple[float, float]:
    """Return the measured mean seconds of a forward and of a whole backward of a stage."""
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
    """Return the fraction of all-reduce time before the end of the last backward of any rank."""
    last_s = max(span["end_s"] for span in spans if span["lane"] == "compute")
    all_reduces = _all_reduces(spans)
    before_s = sum(max(0.0, min(s["end_s"], last_s) - s["start_s"]) for s in all_reduces)
    return before_s / sum(_lasts(span) for span in all_reduces)


def _hidden_by_own(spans: Sequence[Span]) -> float:
    """Return the fraction of all-reduce time during which the same rank computes."""
    computes = [span for span in spans if span["lane"] == "compute"]
    all_reduces = _all_reduces(spans)
    together_s = sum(
        max(0.0, min(each["end_s"], other["end_s"]) - max(each["start_s"], other["start_s"]))
        for each in all_reduces
        for other in computes
        if each["rank"] == other["rank"]
    )
    return together_s / sum(_lasts(span) for span in all_reduces)


def _all_reduces(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if span["name"] == "reduce stage"]


def _lasts(span: Span) -> float:
    return span["end_s"] - span["start_s"]


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row per schedule."""
    columns = ("step_s", "simulated_s", "ratio", "all_reduce_s", "hidden", "hidden_by_own_compute")
    return [
        {
            "schedule": schedule,
            "steps": len(rows),
            **{column: median(numbers(rows, column)) for column in columns},
            "aim": 1.10,
        }
        for (schedule,), rows in grouped(raw, "schedule").items()
    ]


OVERLAP = Claim(
    aim="over emulated links of case 5 a step takes at most 1.10 of its simulation",
    measurements=measurements,
    summarise=summarise,
    draw=bars(
        "schedule",
        value="ratio",
        title="Step over its simulation, links of case 5 (emulated; a dot is a step; dashed: aim)",
        aim=1.10,
    ),
)
