"""Between operators: layers clustered, and stages on submeshes, by dynamic programming."""

from jaxpipe.autoshard.inter_op.cluster import cluster_operators, crossing_bytes
from jaxpipe.autoshard.inter_op.plan import plan_of
from jaxpipe.autoshard.inter_op.stages import (
    Assignment,
    CostOf,
    Stage,
    StageCost,
    assign_stages,
    submeshes,
)

__all__ = [
    "Assignment",
    "CostOf",
    "Stage",
    "StageCost",
    "assign_stages",
    "cluster_operators",
    "crossing_bytes",
    "plan_of",
    "submeshes",
]
