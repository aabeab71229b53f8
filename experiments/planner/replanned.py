"""`python -m experiments.planner.replanned`: seconds of planning again after a loss or a join.

A run of 24 layers on hosts of one device loses a rank, or gets one back: `jaxpipe.run.smaller_plan`
finds the largest plan that fits, as all survivors do before they continue.
"""

import time
from pathlib import Path

from experiments.table import Row, markdown, write_csv
from jaxpipe.config import Config, cluster_from, config_from, plan_from
from jaxpipe.plan import Plan
from jaxpipe.plan.cost.moving_state import moving_s
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
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
    plans = [plan_from(each) for each in (config, smaller, again)]
    return {
        "devices": num_ranks,
        "running": f"{stages} x {replicas}",
        "after a loss": f"{smaller.plan.stages} x {smaller.plan.replicas}",
        "seconds after a loss": lost_s,
        "state moves in, simulated": _moved_s(config, plans[0], plans[1], lost=num_ranks // 2),
        "after a join": f"{again.plan.stages} x {again.plan.replicas}",
        "seconds after a join": joined_s,
        "and back in, simulated": _moved_s(config, plans[1], plans[2], lost=num_ranks // 2),
    }


def _moved_s(config: Config, old: Plan, new: Plan, *, lost: int) -> float:
    profile = gpt_profile(config.model, remat=config.train.remat, flops_per_s=1.0)
    # Parameters and AdamW's moments; a gradient does not move.
    each = bytes_each(config.model)
    return moving_s(
        old,
        new,
        cluster_from(config),
        profile,
        bytes_per_parameter=each.parameter + each.optimizer,
        lost=(lost,),
    )


if __name__ == "__main__":
    rows = [replanned(*size) for size in _SIZES]
    write_csv(rows, _RESULTS / "replanned.csv", number=".3g")
    print(markdown(rows, number=".3g"))
