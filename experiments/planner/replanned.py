"""`python -m experiments.planner.replanned`: seconds of planning again after a loss or a join.

A run of 24 layers on hosts of one device loses a rank, or gets one back: `jaxpipe.run.smaller_plan`
finds the largest plan that fits, as all survivors do before they continue.
"""

import time
from pathlib import Path

from experiments.table import Row, markdown, write_csv
from jaxpipe.config import Config, cluster_from, config_from, plan_from
from jaxpipe.run.smaller_plan import within

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
            },
            "train": {"batch": 512, "remat": "full"},
        }
    )


def replanned(stages: int, replicas: int) -> Row:
    """Return the row of a size: seconds after a loss, and after the device is back."""
    config, num_ranks = config_of(stages, replicas), stages * replicas
    kind = plan_from(config).all_reduce
    names = [device.name for device in cluster_from(config).devices]
    left = [name for name in names if name != names[num_ranks // 2]]
    began_s = time.perf_counter()
    smaller = within(config, num_ranks=len(left), devices=left, all_reduce=kind)
    lost_s = time.perf_counter() - began_s
    assert smaller is not None, num_ranks
    began_s = time.perf_counter()
    again = within(config, num_ranks=num_ranks, devices=names, all_reduce=kind)
    joined_s = time.perf_counter() - began_s
    assert again is not None, num_ranks
    return {
        "devices": num_ranks,
        "running": f"{stages} x {replicas}",
        "after a loss": f"{smaller.plan.stages} x {smaller.plan.replicas}",
        "seconds after a loss": lost_s,
        "after a join": f"{again.plan.stages} x {again.plan.replicas}",
        "seconds after a join": joined_s,
    }


if __name__ == "__main__":
    rows = [replanned(*size) for size in _SIZES]
    write_csv(rows, _RESULTS / "replanned.csv", number=".3g")
    print(markdown(rows, number=".3g"))
