"""Layouts: replicas of stages on groups of unlike GPUs, and the search for the best of them."""

from jaxpipe.plan.layout.layout import Group, Layout, Run, Stage, facing, neighbours
from jaxpipe.plan.layout.layout_task import (
    Bound,
    LayoutTask,
    Objective,
    Place,
    StageCosts,
    bound_by_seconds,
)
from jaxpipe.plan.layout.search import LayoutSearch, search_layout
from jaxpipe.plan.layout.to_plan import plan_of_layout

__all__ = [
    "Bound",
    "Group",
    "Layout",
    "LayoutSearch",
    "LayoutTask",
    "Objective",
    "Place",
    "Run",
    "Stage",
    "StageCosts",
    "bound_by_seconds",
    "facing",
    "neighbours",
    "plan_of_layout",
    "search_layout",
]
