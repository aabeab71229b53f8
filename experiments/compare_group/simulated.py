"""Every setting on every case, simulated, beside what was published."""

from pathlib import Path

from experiments.compare_group.cases import Cases
from experiments.compare_group.jobs import Group, step_s
from experiments.compare_group.published import published_s
from experiments.compare_group.setting import Setting
from experiments.dtfm_iteration_time.table import Row, write_csv
from jaxpipe.simulate import dtfm_constants

TABLE = "simulated.csv"


def simulate_all(cases: Cases, folder: Path) -> list[Row]:
    """Simulate all settings, write the table, and return its rows."""
    rows: list[Row] = []
    for case in cases.cases:
        group = Group(case=case, cases=cases, constants=dtfm_constants(), plans=folder / "plans")
        for setting in Setting:
            seconds = step_s(group.job(setting))
            published = published_s(setting, case, cases)
            row: Row = {
                "case": case.name,
                "setting": setting.value,
                "runs": runs_of(group, setting),
                "published_s": "" if published is None else published,
                "simulated_s": seconds,
            }
            rows.append(row)
            print(" | ".join(map(str, row.values())), flush=True)
    write_csv(rows, folder / TABLE)
    return rows


def runs_of(group: Group, setting: Setting) -> str:
    """Say in a few words what a setting runs on a case."""
    if setting is Setting.MEGATRON_OPTIMAL:
        return group.layout.value
    job = group.job(setting)
    return f"{job.num_stages} stages x {len(job.placement)}"
