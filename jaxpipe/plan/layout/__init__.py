"""Layouts: replicas of stages on groups of unlike GPUs, and the search for the best of them."""

from jaxpipe.plan.layout.layout import Group, Layout, Run, Stage, facing, neighbours

__all__ = ["Group", "Layout", "Run", "Stage", "facing", "neighbours"]
