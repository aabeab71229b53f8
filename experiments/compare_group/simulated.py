"""Simulate every setting on every case, with equal and with slightly uneven computes.

In a simulation all replicas are exactly equally fast. If they share a NIC, they send at the same
moments and leave it idle at the same moments, which no real machine does. Uneven computes show how
much of a simulated step is due to this lockstep.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from experiments.compare_group.cases import Cases, Setting
from experiments.compare_group.jobs import Group, published_s, step_s
from experiments.dtfm_iteration_time.planned import shape_of
from experiments.progress import counted
from experiments.table import Row, write_csv
from jaxpipe.simulate import StepModel, dtfm_constants

TABLE = "simulated.csv"
SYMMETRY_TABLE = "symmetry.csv"


def simulate_all(cases: Cases, folder: Path) -> list[Row]:
    """Simulate all settings, write the table, and return its rows."""
    rows: list[Row] = []
    for case in counted(cases.cases, "simulated cases"):
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
    write_csv(rows, folder / TABLE, number=".2f")
    return rows


def runs_of(group: Group, setting: Setting) -> str:
    """Return the layout of a setting on a case: ranks of a pipeline x replicas, or its name."""
    if setting is Setting.MEGATRON_OPTIMAL:
        return group.layout.value
    plan = group.plan(setting)
    if plan is not None:
        return shape_of(plan)
    job = group.job(setting)
    return f"{job.num_stages} x {len(job.placement)}"


_UNEVEN = 1e-3
_SEEDS = (0, 1, 2)


def uneven(job: StepModel, *, by: float, seed: int) -> StepModel:
    """Return the job with the computes of each rank scaled by a random factor of about `1 ± by`."""
    spread = np.random.default_rng(seed).standard_normal(len(job.forward_s))
    factors = np.maximum(1 + by * spread, 0.5)

    def scaled(seconds: Sequence[float]) -> tuple[float, ...]:
        return tuple(float(each) for each in np.array(seconds) * factors)

    return replace(
        job,
        forward_s=scaled(job.forward_s),
        backward_s=scaled(job.backward_s),
        backward_weight_s=job.backward_weight_s and scaled(job.backward_weight_s),
    )


def measure_symmetry(cases: Cases, folder: Path) -> list[Row]:
    """Simulate all settings even and uneven, write the table, and return its rows."""
    rows: list[Row] = []
    for case in counted(cases.cases, "cases with another order"):
        group = Group(case=case, cases=cases, constants=dtfm_constants(), plans=folder / "plans")
        for setting in Setting:
            job = group.job(setting)
            even_s = step_s(job)
            uneven_s = median(step_s(uneven(job, by=_UNEVEN, seed=seed)) for seed in _SEEDS)
            rows.append(
                {
                    "case": case.name,
                    "setting": setting.value,
                    "simulated_s": even_s,
                    f"simulated_s, computes uneven by {_UNEVEN:.1%}": uneven_s,
                    "even / uneven": even_s / uneven_s,
                }
            )
            print(" | ".join(map(str, rows[-1].values())), flush=True)
    write_csv(rows, folder / SYMMETRY_TABLE, number=".2f")
    return rows
