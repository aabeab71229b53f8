"""Alpa's inter-operator pass: layers into stages, stages onto submeshes.

Layers are those of the model; the paper also clusters operators into layers. Nothing here imports
jax but `searched_collectives`, which is therefore not re-exported.
"""

from jaxpipe.baselines.autoshard.inter_op.alpa_plan import AlpaPlan, alpa_plan, plan_of
from jaxpipe.baselines.autoshard.inter_op.profiled import ProfiledCosts, submesh_space
from jaxpipe.baselines.autoshard.inter_op.sharded_stage import (
    BytesEach,
    Hosts,
    ModelWork,
    PartWork,
    ShardedCosts,
    Works,
)
from jaxpipe.baselines.autoshard.inter_op.stage_search import SubmeshSpace, assign_stages
from jaxpipe.baselines.autoshard.inter_op.submesh_stage import (
    StageCost,
    StageCosts,
    StagedModel,
    SubmeshStage,
    step_s,
    submeshes,
)

__all__ = [
    "AlpaPlan",
    "BytesEach",
    "Hosts",
    "ModelWork",
    "PartWork",
    "ProfiledCosts",
    "ShardedCosts",
    "StageCost",
    "StageCosts",
    "StagedModel",
    "SubmeshSpace",
    "SubmeshStage",
    "Works",
    "alpa_plan",
    "assign_stages",
    "plan_of",
    "step_s",
    "submesh_space",
    "submeshes",
]
