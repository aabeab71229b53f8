"""The calls of a stage on one core: as traced, as a rank compiles them, and so in bfloat16.

Processes of all forms alternate. The share of the peak is that of a forward and a backward, whole
or in two halves; the peak is that of square products in float32 in the same process.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median

from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.programs.stage import CALLS
from experiments.runtime_benchmark.runs import run_ranks
from experiments.table import Row, grouped, numbers
from jaxpipe.models import GptConfig, train_flops_per_token

FORMS = ("as traced", "copied", "bfloat16")


def measurements(bench: Bench) -> list[Measurement]:
    """Return a part per round and form: a row of medians."""
    return [
        Measurement(
            columns={"round": number, "form": form}, measure=partial(_row, bench, form=form)
        )
        for number in range(bench.cases["stage"]["rounds"])
        for form in FORMS
    ]


def _row(bench: Bench, *, form: str) -> list[Row]:
    case, microbatch = bench.cases["stage"], bench.cases["work"]["microbatch"]
    model = {**bench.cases["model"], "num_layers": case["layers"]}
    if form == "bfloat16":
        model["compute_dtype"] = form
    plan = {"replicas": 1, "stages": 1, "microbatch": microbatch, "schedule": "gpipe"}
    task = {"model": model, "plan": plan, "batch": microbatch, "steps": 1}
    sizes = {"count": case["count"], "matrix": case["matrix"]}
    result = run_ranks("stage", {**task, **sizes, "copied": form != "as traced"}, num_ranks=1)
    sequence = model["sequence"]
    per_token = train_flops_per_token(GptConfig(**model), sequence=sequence)
    least_s = microbatch * sequence * per_token / result["peak_flops_per_s"]
    seconds = {call: result[call] for call in CALLS}
    halves_s = seconds["forward_s"] + seconds["input_s"] + seconds["weight_s"]
    return [
        {
            **seconds,
            "peak_gflops": result["peak_flops_per_s"] / 1e9,
            "of_peak": least_s / (seconds["forward_s"] + seconds["backward_s"]),
            "of_peak_in_halves": least_s / halves_s,
        }
    ]


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return medians over the rounds, for each form, and its speed over that of a rank."""
    groups = grouped(raw, "form")
    of_copied = _seconds(groups["copied",])
    columns = (*CALLS, "peak_gflops", "of_peak", "of_peak_in_halves")
    return [
        {
            "form": form,
            "rounds": len(group),
            **{column: median(numbers(group, column)) for column in columns},
            "speedup": of_copied / _seconds(group),
            "aim": "of_peak >= 0.8",
        }
        for (form,), group in groups.items()
    ]


def _seconds(rows: Sequence[Row]) -> float:
    """Return the median seconds of a forward and a backward."""
    return median(float(row["forward_s"]) + float(row["backward_s"]) for row in rows)


STAGE = Claim(
    aim="a stage on one core computes at 80 % of the peak of matrix products",
    measurements=measurements,
    summarise=summarise,
    draw=bars(
        "form",
        value="of_peak",
        title="Forward and backward of a stage on one core (measured; a dot is a process)",
        aim=0.8,
    ),
)
