"""Run a strategy: one program on all devices, its collectives explicit or found by the compiler."""

from jaxpipe.autoshard.spmd.baseline import baseline
from jaxpipe.autoshard.spmd.program import Program, trace_program
from jaxpipe.autoshard.spmd.propagate import propagate
from jaxpipe.autoshard.spmd.sharded_step import (
    NamedStep,
    ShardedProgram,
    abstract_arrays,
    partitioned_step,
    placed,
    shard_program,
    sharded_step,
)
from jaxpipe.autoshard.spmd.train_step import (
    StepModel,
    initial_state,
    train_step,
    unstacked,
)

__all__ = [
    "NamedStep",
    "Program",
    "ShardedProgram",
    "StepModel",
    "abstract_arrays",
    "baseline",
    "initial_state",
    "partitioned_step",
    "placed",
    "propagate",
    "shard_program",
    "sharded_step",
    "trace_program",
    "train_step",
    "unstacked",
]
