"""`jaxpipe train --compute paced`: each rank waits where it would compute; nothing is trained."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from jaxpipe.comm import Transport
from jaxpipe.config import Config, describe
from jaxpipe.paced import Outcome, Scale, execute, planned_all_reduces
from jaxpipe.plan import Plan, draw_plan, ideal_bubble
from jaxpipe.run.console import console
from jaxpipe.run.forecast import conditions_from
from jaxpipe.runtime.metrics.records import MetricsFile, PacedMetrics
from jaxpipe.runtime.metrics.trace_file import write_trace
from jaxpipe.runtime.open_transport import open_base
from jaxpipe.runtime.process.mpirun import launched_rank
from jaxpipe.simulate import plan_step
from jaxpipe.trace import summarise
from models import train_flops_per_token

_TRUTH = "emulated, paced"


def run_paced(config: Config, plan: Plan) -> int:
    """Run the steps of a configuration as one rank; an error ends all ranks."""
    transport = open_base(is_launched=launched_rank(os.environ) is not None)
    try:
        steps = tuple(_steps(config, plan, transport))
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()
    if steps:
        _report(config, plan, steps)
    return 0


def _steps(config: Config, plan: Plan, transport: Transport) -> Iterator[PacedMetrics]:
    """Run all steps, and yield them on rank 0, where they are told and kept."""
    conditions, folder = conditions_from(config), Path(config.run.folder)
    job, sums = plan_step(plan, conditions), planned_all_reduces(plan, conditions)
    scale = Scale(message=config.paced.message_scale, time=config.paced.time_scale)
    is_first, file = transport.rank == 0, None
    if is_first:
        console.print(f"{draw_plan(plan, conditions.cluster)}\n\n{_said(config)}\n", markup=False)
        file = MetricsFile(folder / "metrics.jsonl", describe(config), first_step=0)
    for step in range(config.train.steps):
        outcome = execute(
            job, transport, scale=scale, sums=sums, timeout_s=config.run.startup_timeout_s
        )
        if outcome is None or file is None:
            continue
        metrics = _metrics(config, outcome, step=step + 1)
        file.write(metrics)
        console.print(_line(config, metrics), markup=False)
        yield metrics
        if step + 1 == config.train.steps:
            write_trace(outcome.trace, path=folder / "trace.json", picture=folder / "timeline.png")


def _said(config: Config) -> str:
    slower = "" if config.paced.time_scale == 1 else f", {config.paced.time_scale:g} times slower"
    return (
        f"{_TRUTH}{slower}: ranks wait as long as they would compute, their messages cross the "
        f"links of cluster {config.plan.cluster}; nothing is trained"
    )


def _metrics(config: Config, outcome: Outcome, *, step: int) -> PacedMetrics:
    sequence = config.train.sequence or config.model.sequence
    tokens_per_s = config.train.batch * sequence / outcome.step_s
    (summary,) = summarise(outcome.trace)
    return PacedMetrics(
        truth=_TRUTH,
        step=step,
        step_s=outcome.step_s,
        real_s=outcome.real_s,
        tokens_per_s=tokens_per_s,
        flops_per_s=train_flops_per_token(config.model, sequence=sequence) * tokens_per_s,
        bubble=summary.bubble_fraction or 0.0,
        late_s=outcome.waits.mean_s,
        network_late_s=outcome.network.mean_s,
    )


def _line(config: Config, metrics: PacedMetrics) -> str:
    return (
        f"step {metrics.step:>5}/{config.train.steps}   {metrics.step_s:.4g} s   "
        f"{metrics.tokens_per_s:,.0f} tokens/s   {metrics.flops_per_s / 1e9:.1f} GFLOP/s   "
        f"bubble {metrics.bubble:.0%}   ({_TRUTH}; {metrics.real_s:.4g} s here)"
    )


def _report(config: Config, plan: Plan, steps: Sequence[PacedMetrics]) -> None:
    step_s = median(each.step_s for each in steps)
    bubble, ideal = median(each.bubble for each in steps), ideal_bubble(plan)
    folder = Path(config.run.folder)
    lines = (
        f"a step takes {step_s:.4g} s, median of {len(steps)} ({_TRUTH})",
        f"bubble {bubble:.1%}, median ({_TRUTH}); {ideal:.1%} in theory",
        f"waits ended {1e3 * max(each.late_s for each in steps):.2g} ms late on average here, the "
        f"network heard of messages {1e3 * max(each.network_late_s for each in steps):.2g} ms late",
        "",
        f"{'metrics':<12}{folder / 'metrics.jsonl'}",
        f"{'trace':<12}{folder / 'trace.json'}",
        f"{'picture':<12}{folder / 'timeline.png'}",
    )
    console.print("\n" + "\n".join(lines), markup=False)
