"""The dataflow graph of a step, and the dims of its arrays that are split together."""

from jaxpipe.baselines.autoshard.graph.argument_roles import (
    Roles,
    batch_dims,
    batch_factor,
    final_arrays,
    roles_of,
)
from jaxpipe.baselines.autoshard.graph.graph import ArrayType, Graph, Operator
from jaxpipe.baselines.autoshard.graph.rule import Dims, Rule
from jaxpipe.baselines.autoshard.graph.trace_step import path_name, trace_step

__all__ = [
    "ArrayType",
    "Dims",
    "Graph",
    "Operator",
    "Roles",
    "Rule",
    "batch_dims",
    "batch_factor",
    "final_arrays",
    "path_name",
    "roles_of",
    "trace_step",
]
