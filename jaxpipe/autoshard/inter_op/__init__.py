"""Alpa's inter-operator pass: operators into layers, layers into stages, stages onto submeshes."""

from jaxpipe.autoshard.inter_op.cluster import cluster_operators, crossing_bytes
from jaxpipe.autoshard.inter_op.profiled import ProfiledCosts, machine_of
from jaxpipe.autoshard.inter_op.search import Machine, assign_stages
from jaxpipe.autoshard.inter_op.stage import (
    Stage,
    StageCost,
    StageCosts,
    StagedModel,
    step_s,
    submeshes,
)
from jaxpipe.autoshard.inter_op.to_plan import AlpaPlan, alpa_plan, plan_of

__all__ = [
    "AlpaPlan",
    "Machine",
    "ProfiledCosts",
    "Stage",
    "StageCost",
    "StageCosts",
    "StagedModel",
    "alpa_plan",
    "assign_stages",
    "cluster_operators",
    "crossing_bytes",
    "machine_of",
    "plan_of",
    "step_s",
    "submeshes",
]
