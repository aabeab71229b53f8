"""The link bandwidth from which ZeRO-3 (fully sharded data parallelism) wins; simulated.

Both train GPT-3 XL on 64 devices whose links are all equal; their bandwidth is swept. Both compute
at the speeds that were fitted to DT-FM's runs, so only the communication differs. The pipeline has
jaxpipe's schedule and the best number of stages. Nothing here is measured.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import lines
from experiments.table import Row, grouped, numbers
from jaxpipe import topo
from jaxpipe.baselines.published.jaxpipe_on_dtfm import Choices, jaxpipe_step
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.published.zero3 import zero3_step
from jaxpipe.simulate import dtfm_constants, simulate
from jaxpipe.simulate.plan_step import end_s


def measurements(bench: Bench) -> list[Measurement]:
    """Return the one part: a row per latency, batch and bandwidth."""
    return [Measurement(columns={}, measure=partial(_measure, bench))]


def _measure(bench: Bench) -> list[Row]:
    case = bench.cases["crossover"]
    return [
        _row(case, batch=batch, delay_ms=delay_ms, gbps=gbps)
        for delay_ms in case["delay_ms"]
        for batch in case["batches"]
        for gbps in case["bandwidth_gbps"]
    ]


def _row(case: Any, *, batch: int, delay_ms: float, gbps: float) -> Row:
    hosts = case["hosts"]
    cluster = topo.load(
        f"homogeneous:hosts={hosts},delay_ms={delay_ms},bandwidth_gbps={gbps},gpu={case['gpu']}"
    )
    workload = Workload(num_layers=case["num_layers"], batch=batch)
    constants = dtfm_constants()
    choices = Choices(num_stages=tuple(case["stages"]))
    pipeline = jaxpipe_step(cluster, workload=workload, constants=constants, choices=choices)
    sharded = zero3_step(cluster, tuple(range(hosts)), workload=workload, constants=constants)
    pipeline_s, sharded_s = end_s(simulate(pipeline)), end_s(simulate(sharded))
    return {
        "delay_ms": delay_ms,
        "batch": batch,
        "bandwidth_gbps": gbps,
        "stages": len(pipeline.placement[0]),
        "pipeline_simulated_s": pipeline_s,
        "zero3_simulated_s": sharded_s,
        "pipeline_over_zero3": pipeline_s / sharded_s,
    }


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return, per latency and batch, the bandwidth from which ZeRO-3 is faster."""
    rows = []
    for (delay_ms, batch), group in grouped(raw, "delay_ms", "batch").items():
        ratios, gbps = numbers(group, "pipeline_over_zero3"), numbers(group, "bandwidth_gbps")
        wins = [speed for speed, ratio in zip(gbps, ratios, strict=True) if ratio > 1]
        rows.append(
            {
                "delay_ms": delay_ms,
                "batch": batch,
                "zero3_wins_from_gbps": min(wins) if wins else "never",
                "zero3_at_slowest": f"{1 / ratios[0]:.3g} x the pipeline's time",
                "zero3_at_fastest": f"{1 / ratios[-1]:.3g} x the pipeline's time",
            }
        )
    return rows


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the step times of both over the bandwidth."""
    curves = {}
    for (delay_ms, batch), group in grouped(raw, "delay_ms", "batch").items():
        gbps = numbers(group, "bandwidth_gbps")
        where = f"{delay_ms} ms, batch {batch}"
        curves[f"pipeline, {where}"] = (gbps, numbers(group, "pipeline_simulated_s"))
        curves[f"ZeRO-3, {where}"] = (gbps, numbers(group, "zero3_simulated_s"))
    lines(
        curves,
        path,
        title="A step of GPT-3 XL on 64 V100s over equal links (simulated)",
        labels=("bandwidth of each link, Gbps", "step, s"),
    )


CROSSOVER = Claim(
    aim="simulated: whether fully sharded data parallelism wins on fast links",
    measurements=measurements,
    summarise=summarise,
    draw=draw,
)
