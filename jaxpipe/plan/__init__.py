"""Plans: placement, partition, schedule and sync trees, as data."""

from jaxpipe.plan.check import check_plan
from jaxpipe.plan.default import default_plan
from jaxpipe.plan.draw_plan import draw_plan, ideal_bubble
from jaxpipe.plan.group import Sharing, check_hosts
from jaxpipe.plan.islands import Island, check_islands, fitting_islands, island_of, islands_of
from jaxpipe.plan.partition import Cut, check_partition, even_partition, layers_of
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.plan_config import PlanConfig, Replan
from jaxpipe.plan.plan_file import (
    ResolvedPlan,
    is_plan_file,
    parse_resolved_plan,
    plan_text,
    read_plan,
    read_resolved_plan,
    resolved_plan_text,
    write_plan,
)
from jaxpipe.plan.sync import island_tree

__all__ = [
    "Cut",
    "Island",
    "Pipeline",
    "Plan",
    "PlanConfig",
    "Replan",
    "ResolvedPlan",
    "Sharing",
    "check_hosts",
    "check_islands",
    "check_partition",
    "check_plan",
    "default_plan",
    "draw_plan",
    "even_partition",
    "fitting_islands",
    "ideal_bubble",
    "is_plan_file",
    "island_of",
    "island_tree",
    "islands_of",
    "layers_of",
    "parse_resolved_plan",
    "plan_text",
    "read_plan",
    "read_resolved_plan",
    "resolved_plan_text",
    "write_plan",
]
