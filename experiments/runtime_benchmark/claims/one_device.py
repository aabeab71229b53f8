"""Two ranks on two cores against one jitted step on one core."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.claims.pipelines import (
    NUM_RANKS,
    run_one_device,
    run_pipeline,
    tokens_per_step,
)
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import check_cores
from experiments.runtime_benchmark.tables import grouped, numbers


def measure(bench: Bench) -> list[Row]:
    """Return a row for each measured step, of one device in each form and of each schedule."""
    check_cores(needed=NUM_RANKS)
    case, rows = bench.cases["one_device"], []
    for number in range(bench.cases["work"]["rounds"]):
        results = {(1, form): run_one_device(bench, form=form) for form in case["forms"]}
        results |= {
            (NUM_RANKS, schedule): run_pipeline(bench, schedule=schedule)
            for schedule in case["schedules"]
        }
        rows += [
            {
                "cores": cores,
                "how": how,
                "round": number,
                "step": step,
                "step_s": step_s,
                "compile_s": result["compile_s"],
                "tokens_per_s": tokens_per_step(bench) / step_s,
            }
            for (cores, how), result in results.items()
            for step, step_s in enumerate(result["step_s"][1:], start=1)
        ]
    return rows


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row for each way, with its speed over that of the faster form on one core."""
    groups = grouped(raw, "cores", "how")
    speed = {key: median(numbers(rows, "tokens_per_s")) for key, rows in groups.items()}
    alone = max(tokens for (cores, _), tokens in speed.items() if cores == "1")
    return [
        {
            "cores": cores,
            "how": how,
            "tokens_per_s": speed[cores, how],
            "compile_s": median(numbers(rows, "compile_s")),
            "speedup": speed[cores, how] / alone,
            "aim": 1.85 if cores != "1" else "",
        }
        for (cores, how), rows in groups.items()
    ]


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the speed of every step."""
    bars(
        {
            f"{how}\n{cores} core{'s' if cores != '1' else ''}": numbers(rows, "tokens_per_s")
            for (cores, how), rows in grouped(raw, "cores", "how").items()
        },
        path,
        title="One jitted step on one core, and pipelines on two (measured; a dot is a step)",
        unit="tokens/s",
    )


ONE_DEVICE = Claim(
    aim="two ranks are at least 1.85 times as fast as one jitted step on one core",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
