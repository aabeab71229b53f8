"""`python -m experiments.planner.replanned`: seconds of planning again after a loss or a join.

A run of 24 layers on hosts of one device loses a rank, or gets one back: `jaxpipe.run.smaller_plan`
chooses the next plan, as the first survivor does before all continue. The state moves between
ranks, and a plan is worth `run.change_every` steps.
"""

import time
from pathlib import Path

from experiments.table import Row, markdown, write_csv
from jaxpipe.config import Config, cluster_from, config_from
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.smaller_plan import replanned

_RESULTS = Path(__file__).parent / "results"
_SIZES = ((8, 8), (8, 64))
"""Stages and replicas of the running plans."""


def config_of(stages: int, replicas: int) -> Config:
    """Return a run of these sizes on as many hosts."""
    return config_from(
        {
            "run": {"folder": "unused"},
            "data": {"folder": "unused"},
            "model": {"preset": "gpt-xl-24"},
            "plan": {
                "cluster": f"homogeneous:hosts={stages * replicas}",
                "stages": stages,
                "replicas": replicas,
                "microbatch": 1,
                "schedule": "1f1b",
            },
            "train": {"batch": 512, "remat": "full"},
        }
    )


def rows_of(stages: int, replicas: int) -> list[Row]:
    """Return the rows of a size: after a loss, and after the device is back."""
    config, num_ranks = config_of(stages, replicas), stages * replicas
    running = plan_from(config)
    names = [device.name for device in cluster_from(config).devices]
    left = [name for name in names if name != names[num_ranks // 2]]
    loss, smaller = _replanned(config, running, left, change="loss")
    join, _ = _replanned(config, smaller, names, change="join")
    return [loss, join]


def _replanned(
    config: Config, running: Plan, devices: list[str], *, change: str
) -> tuple[Row, Plan]:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = replanned(
        config,
        num_ranks=len(devices),
        devices=devices,
        all_reduce=running.all_reduce,
        running=running,
    )
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    assert found is not None, change
    following = found[1]
    row: Row = {
        "devices": len(devices),
        "change": change,
        "running": running.shape,
        "following": following.plan.shape,
        "seconds of planning, measured": took_s,
        "of processor time": cpu_s,
        "seconds of a step, closed form": following.step_s,
        "seconds of moving, closed form": following.moving_s,
    }
    return row, following.plan


if __name__ == "__main__":
    rows = [row for size in _SIZES for row in rows_of(*size)]
    write_csv(rows, _RESULTS / "replanned.csv", number=".3g")
    print(markdown(rows, number=".3g"))
