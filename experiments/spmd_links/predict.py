"""What a step should take on a link of some rate, from what it took on links as they are.

The pipeline is simulated: the profile by FLOPs, times the one factor that gives what was measured.
One program on all ranks waits for its collectives, which as rings send the counted bytes one after
the other: they are added to what was measured.
"""

from pathlib import Path

import numpy as np
from scipy.optimize import root_scalar

from experiments.spmd_links.links import NUM_RANKS, cluster_name, cluster_of
from jaxpipe.compare.measured import Measured
from jaxpipe.config import load_config, plan_from
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.simulate.plan_step import Conditions, plan_step_s

_GRADIENT_BYTES = 4
_FLOPS_PER_S = 50e9
"""Any speed: the factor makes up for it."""


def predicted_s(measured: Measured, config: Path, *, gbps: float, unshaped_gbps: float) -> float:
    """Return the predicted seconds of a step, given the run of the system on unshaped links."""
    if measured.is_counted:
        bytes_per_s = gbps * 1e9 / 8
        return measured.step_s + max(rank.sent_bytes for rank in measured.ranks) / bytes_per_s
    return _pipeline_s(config, gbps, slow=_factor(measured, config, unshaped_gbps))


def _factor(measured: Measured, config: Path, unshaped_gbps: float) -> float:
    """Solve for how much slower than the profile the ranks are; all but the link scales with it."""

    def excess_s(slow: float) -> float:
        return _pipeline_s(config, unshaped_gbps, slow=slow) - measured.step_s

    return root_scalar(excess_s, bracket=(1e-3, 1e3)).root


def _pipeline_s(path: Path, gbps: float, *, slow: float) -> float:
    config = load_config(path, [f"plan.cluster={cluster_name(gbps=gbps)}"])
    profile = gpt_profile(config.model, remat=config.train.remat, flops_per_s=_FLOPS_PER_S)
    conditions = Conditions(
        cluster=cluster_of(gbps=gbps),
        profile=profile,
        slow=np.full(NUM_RANKS, slow),
        gradient_bytes=_GRADIENT_BYTES,
    )
    return plan_step_s(plan_from(config), conditions)
