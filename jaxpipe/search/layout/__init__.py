"""Layouts: replicas of stages on groups of unlike GPUs, and the search for the best of them."""

from jaxpipe.search.layout.closed_form import closed_form_s
from jaxpipe.search.layout.layout import Group, Layout, Run, Stage, facing, neighbours
from jaxpipe.search.layout.layout_step import LayoutCosts, layout_step
from jaxpipe.search.layout.layout_task import LayoutTask, StageCosts
from jaxpipe.search.layout.search import LayoutSearch, search_layout
from jaxpipe.search.layout.to_plan import plan_of_layout

__all__ = [
    "Group",
    "Layout",
    "LayoutCosts",
    "LayoutSearch",
    "LayoutTask",
    "Run",
    "Stage",
    "StageCosts",
    "closed_form_s",
    "facing",
    "layout_step",
    "neighbours",
    "plan_of_layout",
    "search_layout",
]
