"""Planner: choose stages, replicas, placement, partition, schedule and all-reduce together."""

from jaxpipe.plan.decide.balance import balanced_cut
from jaxpipe.plan.decide.build_plan import build, with_suited_trees
from jaxpipe.plan.decide.decide import Decision, Effort, Objective, decide
from jaxpipe.plan.decide.dtfm_plan import dtfm_plan
from jaxpipe.plan.decide.sync_order import fastest_tree
from jaxpipe.plan.decide.task import Shape, Task, shapes

__all__ = [
    "Decision",
    "Effort",
    "Objective",
    "Shape",
    "Task",
    "balanced_cut",
    "build",
    "decide",
    "dtfm_plan",
    "fastest_tree",
    "shapes",
    "with_suited_trees",
]
