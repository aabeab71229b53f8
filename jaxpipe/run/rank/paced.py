"""Paced runs: each rank waits as long as its computation would take; nothing is trained."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from jaxpipe.comm import Transport, closing
from jaxpipe.config import Config, describe
from jaxpipe.models import train_flops_per_token
from jaxpipe.paced import Outcome, Scale, execute, planned_all_reduces, planned_outer
from jaxpipe.plan import Plan, draw_plan
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.run.terminal.console import console
from jaxpipe.run.terminal.progress import Progress
from jaxpipe.run.terminal.report import theory_of
from jaxpipe.runtime.metrics.metrics_file import MetricsFile
from jaxpipe.runtime.metrics.records import (
    METRICS_FILE,
    PICTURE_FILE,
    TRACE_FILE,
    PacedMetrics,
)
from jaxpipe.runtime.metrics.trace_file import write_trace
from jaxpipe.simulate import Conditions, plan_step
from jaxpipe.topo import Cluster
from jaxpipe.topo.units import flops_text
from jaxpipe.trace import one_step, summarise

_TRUTH = "emulated, paced"


def run_paced(
    config: Config,
    plan: Plan,
    transport: Transport,
    *,
    cluster: Cluster | None = None,
    say: Callable[[Progress], None],
) -> int:
    """Run the steps of a configuration as one rank; an error ends all ranks.

    The `cluster` is the configured one, which is loaded by default; `say` shows how far it is.
    """
    with closing(transport):
        steps = tuple(
            _steps(config, plan, transport, conditions_of(config, cluster, remat=plan.remat), say)
        )
    if steps:
        _report(config, plan, steps)
    return 0


def _steps(
    config: Config,
    plan: Plan,
    transport: Transport,
    conditions: Conditions,
    say: Callable[[Progress], None],
) -> Iterator[PacedMetrics]:
    """Run all steps; on rank 0, print, write and yield the metrics of each."""
    folder = Path(config.run.folder)
    is_first, file = transport.rank == 0, None
    if is_first:
        drawn = draw_plan(plan, conditions.cluster, profile=conditions.profile)
        console.print(f"{drawn}\n\n{_notice(config)}\n", markup=False)
        file = MetricsFile(folder / METRICS_FILE, describe(config), first_step=0, truth=_TRUTH)
    outcomes = _outcomes(config, plan, transport, conditions, say)
    for step, (outcome, step_s, bubble) in enumerate(outcomes, 1):
        if file is None:
            continue
        metrics = _metrics(config, outcome, step=step, step_s=step_s, bubble=bubble)
        file.write(metrics)
        console.print(_line(config, metrics), markup=False)
        yield metrics
        if step == config.train.steps:
            # The trace of an outer loop counts its steps, that of a single step is its first.
            number = step if config.outer.is_on else 1
            last = one_step(outcome.trace, step=number, called=step)
            picture = folder / PICTURE_FILE if config.run.pictures else None
            write_trace(last, path=folder / TRACE_FILE, picture=picture)


def _outcomes(
    config: Config,
    plan: Plan,
    transport: Transport,
    conditions: Conditions,
    say: Callable[[Progress], None],
) -> Iterator[tuple[Outcome, float, float]]:
    """Execute all steps; on rank 0, yield the outcome, the seconds and the bubble of each."""
    step_model = plan_step(plan, conditions)
    scale = Scale(message=config.paced.message_scale, time=config.paced.time_scale)
    num_steps, timeout_s = config.train.steps, config.run.startup_timeout_s

    def done(steps: int) -> None:
        # With an outer loop the lines of all steps come at the end.
        is_logged = not config.outer.is_on
        say(
            Progress(
                what="emulating", done=steps, total=num_steps, unit="step", is_logged=is_logged
            )
        )

    if config.outer.is_on:
        # Outer steps overlap with inner ones: all of them are one emulation.
        outer = planned_outer(plan, conditions, config.outer, num_steps=num_steps)
        outcome = execute(
            step_model, transport, scale=scale, outer=outer, timeout_s=timeout_s, after_step=done
        )
        if outcome is not None:
            seconds = (end - start for start, end in pairwise((0.0, *outcome.ends_s)))
            yield from ((outcome, *each) for each in zip(seconds, outcome.bubbles, strict=True))
        return
    all_reduces = planned_all_reduces(plan, conditions)
    for step in range(num_steps):
        outcome = execute(
            step_model, transport, scale=scale, all_reduces=all_reduces, timeout_s=timeout_s
        )
        done(step + 1)
        if outcome is not None:
            (summary,) = summarise(outcome.trace)
            yield outcome, outcome.step_s, summary.bubble or 0.0


def _notice(config: Config) -> str:
    slower = "" if config.paced.time_scale == 1 else f", {config.paced.time_scale:g} times slower"
    return (
        f"{_TRUTH}{slower}: ranks wait as long as their computation would take, messages cross the "
        f"emulated links of cluster {config.plan.cluster}; nothing is trained"
    )


def _metrics(
    config: Config, outcome: Outcome, *, step: int, step_s: float, bubble: float
) -> PacedMetrics:
    sequence = config.train.sequence or config.model.sequence
    tokens_per_s = config.train.batch * sequence / step_s
    return PacedMetrics(
        truth=_TRUTH,
        step=step,
        step_s=step_s,
        real_s=outcome.real_s / len(outcome.ends_s),
        tokens_per_s=tokens_per_s,
        flops_per_s=train_flops_per_token(config.model, sequence=sequence) * tokens_per_s,
        bubble=bubble,
        late_s=outcome.waits.mean_s,
        network_late_s=outcome.network.mean_s,
    )


def _line(config: Config, metrics: PacedMetrics) -> str:
    return (
        f"step {metrics.step:>5}/{config.train.steps}   {metrics.step_s:.4g} s   "
        f"{metrics.tokens_per_s:,.0f} tokens/s   {flops_text(metrics.flops_per_s)}   "
        f"bubble {metrics.bubble:.0%}   ({_TRUTH}; {metrics.real_s:.4g} s here)"
    )


def _report(config: Config, plan: Plan, steps: Sequence[PacedMetrics]) -> None:
    step_s = median(each.step_s for each in steps)
    bubble, ideal = median(each.bubble for each in steps), theory_of(config, plan)
    late_ms = 1e3 * max(each.late_s for each in steps)
    network_late_ms = 1e3 * max(each.network_late_s for each in steps)
    folder = Path(config.run.folder)
    mean_s = sum(each.step_s for each in steps) / len(steps)
    with_outer = (
        f"with its outer steps {mean_s:.4g} s, mean of {len(steps)}, {config.outer.every} inner "
        f"steps to an outer one ({_TRUTH})",
    )
    lines = (
        f"a step takes {step_s:.4g} s, median of {len(steps)} ({_TRUTH})",
        *(with_outer if config.outer.is_on else ()),
        f"bubble {bubble:.1%}, median ({_TRUTH}); {ideal:.1%} in theory",
        f"timing error on this machine, mean of the worst step: waits end {late_ms:.2g} ms late, "
        f"messages enter the emulated network {network_late_ms:.2g} ms late",
        "",
        f"{'metrics':<12}{folder / METRICS_FILE}",
        f"{'trace':<12}{folder / TRACE_FILE}",
        f"{'picture':<12}{folder / PICTURE_FILE}",
    )
    console.print("\n" + "\n".join(lines), markup=False)
