"""Layouts of arrays on a mesh, and the steps that bring an array into all layouts it is read in."""

from jaxpipe.baselines.autoshard.resharding.carry_sums import Computed, carried
from jaxpipe.baselines.autoshard.resharding.layout_graph import LayoutBook, Layouts, shardings_of
from jaxpipe.baselines.autoshard.resharding.steps import ReshardingStep, steps_to

__all__ = [
    "Computed",
    "LayoutBook",
    "Layouts",
    "ReshardingStep",
    "carried",
    "shardings_of",
    "steps_to",
]
