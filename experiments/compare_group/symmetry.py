"""What of a simulated step is lockstep: every setting again, its ranks' computes a little uneven.

In a simulation all replicas are equally fast to the last bit. Where they share a NIC they then
send at the same moments, and leave it idle at the same moments; no real machine is so even.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from experiments.compare_group.cases import Cases
from experiments.compare_group.jobs import Group, step_s
from experiments.compare_group.setting import Setting
from experiments.dtfm_iteration_time.table import Row, write_csv
from jaxpipe.simulate import StepModel, dtfm_constants

TABLE = "symmetry.csv"
_UNEVEN = 1e-3
_SEEDS = (0, 1, 2)


def uneven(job: StepModel, *, by: float, seed: int) -> StepModel:
    """Return the job with the computes of each rank scaled by some `1 ± by`, alike in a step."""
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
    for case in cases.cases:
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
    write_csv(rows, folder / TABLE)
    return rows
