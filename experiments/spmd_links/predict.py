"""Predict the step time on a link of some rate from the measured step time on unshaped links.

The pipeline is simulated, with the profile by FLOPs times one factor that reproduces the
measurement. An SPMD program waits for its collectives, which send the counted bytes one after the
other: their time is added to the measurement.
"""

from pathlib import Path

import numpy as np
from scipy.optimize import root_scalar

from experiments.spmd_links.links import NUM_RANKS, cluster_name, cluster_of
from jaxpipe.baselines.compare.measured import MeasuredSystem
from jaxpipe.config import load_config
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.propose.resolve import plan_from
from jaxpipe.schedule import Remat
from jaxpipe.simulate.plan_step import Conditions, plan_step_s

_GRADIENT_BYTES = 4
_FLOPS_PER_S = 50e9
"""An arbitrary speed, which the fitted factor corrects."""


def predicted_s(
    measured: MeasuredSystem, config: Path, *, gbps: float, unshaped_gbps: float
) -> float:
    """Return the predicted seconds of a step, given a run of the system on unshaped links."""
    if measured.is_counted:
        bytes_per_s = gbps * 1e9 / 8
        return measured.step_s + max(rank.sent_bytes for rank in measured.ranks) / bytes_per_s
    return _pipeline_s(config, gbps, slow=_factor(measured, config, unshaped_gbps))


def _factor(measured: MeasuredSystem, config: Path, unshaped_gbps: float) -> float:
    """Solve for the slowdown of the ranks relative to the profile; the link does not scale."""

    def excess_s(slow: float) -> float:
        return _pipeline_s(config, unshaped_gbps, slow=slow) - measured.step_s

    return root_scalar(excess_s, bracket=(1e-3, 1e3)).root


def _pipeline_s(path: Path, gbps: float, *, slow: float) -> float:
    config = load_config(path, [f"plan.cluster={cluster_name(gbps=gbps)}"])
    profile = gpt_profile(
        config.model, remat=config.train.remat or Remat.NONE, flops_per_s=_FLOPS_PER_S
    )
    conditions = Conditions(
        cluster=cluster_of(gbps=gbps),
        profile=profile,
        slow=np.full(NUM_RANKS, slow),
        gradient_bytes=_GRADIENT_BYTES,
    )
    return plan_step_s(plan_from(config), conditions)
