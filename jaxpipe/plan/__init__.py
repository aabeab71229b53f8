"""Plans: the placement of stages on devices, the partition of layers, and the sync trees."""

from jaxpipe.plan.default import PlanConfig, default_plan
from jaxpipe.plan.draw import draw_plan, ideal_bubble
from jaxpipe.plan.dtfm import DtfmCost, dtfm_cost
from jaxpipe.plan.file import check_plan, plan_text, read_plan, write_plan
from jaxpipe.plan.partition import Cut, check_partition, even_partition, layers_of
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import island_tree

__all__ = [
    "Cut",
    "DtfmCost",
    "Plan",
    "PlanConfig",
    "check_partition",
    "check_plan",
    "default_plan",
    "draw_plan",
    "dtfm_cost",
    "even_partition",
    "ideal_bubble",
    "island_tree",
    "layers_of",
    "plan_text",
    "read_plan",
    "write_plan",
]
