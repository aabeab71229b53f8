"""Ours, DT-FM and Megatron, and what each choice of our plan is worth; simulated.

One choice at a time is replaced by DT-FM's: the placement by its random one, the all-reduce by a
chain of the replicas in the order of their ranks, the schedule by GPipe.
"""

from dataclasses import replace
from pathlib import Path

from experiments.compare_group.cases import Case, Cases, Setting
from experiments.compare_group.jobs import Group
from experiments.compare_group.simulated import TABLE as SIMULATED
from experiments.progress import counted
from experiments.table import Row, markdown, percent, read_csv, write_csv
from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import Plan, even_partition
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate import dtfm_constants, plan_step_s

TABLE = "choices"


def measure_choices(cases: Cases, folder: Path) -> list[Row]:
    """Simulate our plans without each choice, write the table, and return its rows.

    The other systems' seconds are those of `simulate`.
    """
    seconds = {
        (row["case"], Setting(row["setting"])): float(row["simulated_s"])
        for row in read_csv(folder / SIMULATED)
    }
    rows = [_row(case, cases, seconds, folder / "plans") for case in counted(cases.cases, "cases")]
    write_csv(rows, folder / f"{TABLE}.csv", number=".2f")
    (folder / f"{TABLE}.md").write_text(markdown(rows, number=".2f") + "\n")
    print(markdown(rows, number=".2f"))
    return rows


def _row(case: Case, cases: Cases, seconds: dict[tuple[str, Setting], float], plans: Path) -> Row:
    group = Group(case=case, cases=cases, constants=dtfm_constants(), plans=plans)
    ours = group.plan(Setting.OURS)
    assert ours is not None, case
    ours_s = plan_step_s(ours, group.conditions)
    dtfm_s = seconds[case.name, Setting.DTFM]
    megatron_s = seconds[case.name, Setting.MEGATRON_OPTIMAL]
    others = {
        "chain all-reduce": plan_step_s(with_chain(ours), group.conditions),
        "GPipe": plan_step_s(with_gpipe(ours), group.conditions),
        "random placement": seconds[case.name, Setting.OURS_UNSCHEDULED],
    }
    return {
        "case": case.name,
        "ours_s": ours_s,
        "dtfm_s": dtfm_s,
        "megatron_s": megatron_s,
        "dtfm / ours": dtfm_s / ours_s,
        "megatron / ours": megatron_s / ours_s,
        **{f"with {name}": percent(each / ours_s - 1) for name, each in others.items()},
    }


def with_chain(plan: Plan) -> Plan:
    """Return the plan with all-reduces along chains of the replicas in the order of their ranks."""
    sync = tuple(
        tuple(plan.rank(replica=replica, stage=stage) for replica in range(plan.num_replicas))
        for stage in range(plan.num_stages)
    )
    return replace(plan, all_reduce=AllReduceKind.CHAIN, sync=sync)


def with_gpipe(plan: Plan) -> Plan:
    """Return the plan with all forwards before all backwards, whatever memory that takes.

    GPipe has no chunks: each rank holds as many layers as before, all of them consecutive.
    """
    size = plan.num_pipeline_ranks
    cut = plan.cut
    if plan.num_chunks > 1:
        cut = even_partition(num_layers=sum(plan.cut), num_stages=size)
    without_chunks = replace(
        plan, schedule=ScheduleKind.GPIPE, num_chunks=1, sync=plan.sync[: len(cut)]
    )
    return without_chunks.of_each(warmup=None, cut=cut)
