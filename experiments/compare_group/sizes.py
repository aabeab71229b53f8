"""The three reports for all nine published sizes, simulated.

The plan of a case was found for one size. Here its layers are divided evenly, as many as there are,
and its pipelines take more microbatches; placement, schedule and all-reduce stay. So our columns
are upper bounds: a plan found for a size would be at least as fast.

The other systems' seconds are those of `experiments.dtfm_iteration_time` on its clusters; on others
they are simulated here.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from experiments.compare_group.cases import Case, Cases, Setting
from experiments.compare_group.jobs import (
    MEGATRON,
    PUBLISHED_NAMES,
    Group,
    published_layout,
    published_s,
    step_s,
)
from experiments.compare_group.plans import unscheduled_plan
from experiments.dtfm_iteration_time.prediction import BATCHES, LAYERS
from experiments.progress import counted
from experiments.table import Row, markdown, read_csv, write_csv
from jaxpipe.baselines.published.published_systems import system_step
from jaxpipe.plan import Plan, even_partition
from jaxpipe.simulate import StepModel, dtfm_constants, plan_step

TABLE = "sizes"
_ITERATION = Path(__file__).parents[1] / "dtfm_iteration_time" / "results" / "iteration.csv"
_OURS = (Setting.OURS, Setting.OURS_UNSCHEDULED)


def resized(plan: Plan, *, layers: int, factor: int) -> Plan:
    """Return the plan for another number of layers and `factor` times as many microbatches.

    Raises:
        PlanError: there are fewer layers than stages.
    """
    return plan.of_each(
        cut=even_partition(num_layers=layers, num_stages=plan.num_stages),
        num_microbatches=factor * plan.num_microbatches,
    )


def simulate_sizes(cases: Cases, folder: Path, *, only: list[str] | None = None) -> list[Row]:
    """Simulate all settings in all sizes, write the table, and return its rows."""
    rows: list[Row] = []
    for case in counted(cases.cases, "cases"):
        if only and case.name not in only:
            continue
        for layers in LAYERS:
            rows += _rows(case, replace(cases, layers=layers), folder / "plans")
            print(markdown(rows[-len(BATCHES) :], number=".2f"), flush=True)
    if not only:
        write_csv(rows, folder / f"{TABLE}.csv", number=".2f")
        (folder / f"{TABLE}.md").write_text(markdown(rows, number=".2f") + "\n")
    return rows


def _rows(case: Case, cases: Cases, plans: Path) -> list[Row]:
    settings = list(Setting)
    known = theirs(case, cases)
    seconds = {each: known.get(each) or _seconds(case, cases, each, plans) for each in settings}
    rows: list[Row] = []
    for batch in BATCHES:
        sized = replace(cases, batch=batch)
        at = {each: seconds[each](batch) for each in settings}
        published = {each: published_s(each, case, sized) for each in settings}
        rows.append(
            {
                "case": case.name,
                "layers": cases.layers,
                "batch": batch,
                **{f"({each.value}) simulated": at[each] for each in settings},
                **{
                    f"({each.value}) published": "" if seen is None else seen
                    for each, seen in published.items()
                    if each not in _OURS
                },
                "(a)/(c)": at[Setting.MEGATRON_OPTIMAL] / at[Setting.OURS],
                "(d)/(c)": at[Setting.OURS_UNSCHEDULED] / at[Setting.OURS],
                "(b)/(d)": at[Setting.MEGATRON_P8] / at[Setting.OURS_UNSCHEDULED],
                "(e)/(c)": at[Setting.DTFM] / at[Setting.OURS],
            }
        )
    return rows


def theirs(case: Case, cases: Cases) -> dict[Setting, Callable[[int], float]]:
    """Return the stored seconds of the published systems by batch, where the whole cluster trains.

    Megatron's best layout is the one that is fastest with the first batch, as published or else as
    simulated.
    """
    if case.devices is not None:
        return {}
    rows = [
        row
        for row in read_csv(_ITERATION)
        if (row["cluster"], row["layers"]) == (case.cluster, str(cases.layers))
        and row["seed"] in ("", str(cases.seed))
    ]
    if not rows:
        return {}

    def seconds_of(name: str) -> Callable[[int], float]:
        by_batch = {
            int(row["batch"]): float(row["simulated_s"]) for row in rows if row["system"] == name
        }
        return by_batch.__getitem__

    layout = published_layout(case, replace(cases, batch=BATCHES[0]))
    best = (
        min(MEGATRON.values(), key=lambda name: seconds_of(name)(BATCHES[0]))
        if layout is None
        else MEGATRON[layout]
    )
    return {
        Setting.MEGATRON_OPTIMAL: seconds_of(best),
        **{setting: seconds_of(name) for setting, name in PUBLISHED_NAMES.items()},
    }


def _seconds(case: Case, cases: Cases, setting: Setting, plans: Path) -> Callable[[int], float]:
    """Return the seconds of a setting by batch: a line through two batches, as steps repeat."""
    once, twice = (
        step_s(_job(case, replace(cases, batch=batch), setting, plans)) for batch in BATCHES[:2]
    )
    return lambda batch: once + (twice - once) * (batch / BATCHES[0] - 1)


def _job(case: Case, cases: Cases, setting: Setting, plans: Path) -> StepModel:
    group = Group(case=case, cases=cases, constants=dtfm_constants(), plans=plans)
    if setting is Setting.MEGATRON_OPTIMAL:
        # One layout for all batches: not every layout was published with every batch.
        layout = replace(group, cases=replace(cases, batch=BATCHES[0])).layout
        return system_step(
            layout,
            group.cluster,
            workload=cases.workload,
            constants=group.constants,
            seed=cases.seed,
        )
    if setting not in _OURS:
        return group.job(setting)
    found = group.plan(Setting.OURS)
    assert found is not None, case
    plan = resized(found, layers=cases.layers, factor=cases.batch // BATCHES[0])
    if setting is Setting.OURS_UNSCHEDULED:
        plan = unscheduled_plan(plan, group.cluster, seed=cases.seed)
    return plan_step(plan, group.conditions)
