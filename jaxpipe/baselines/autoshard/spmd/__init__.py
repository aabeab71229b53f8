"""Run a strategy as one SPMD program, its collectives explicit or derived by GSPMD."""

from jaxpipe.baselines.autoshard.spmd.baseline import baseline
from jaxpipe.baselines.autoshard.spmd.host_program import HostProgram
from jaxpipe.baselines.autoshard.spmd.host_schedule import HostSchedule, schedule_of
from jaxpipe.baselines.autoshard.spmd.host_step import (
    HostStep,
    local_piece,
    measured_collectives,
    measured_segments,
    trace_host_program,
)
from jaxpipe.baselines.autoshard.spmd.interpret import Combining
from jaxpipe.baselines.autoshard.spmd.microbatches import accumulated
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, trace_program
from jaxpipe.baselines.autoshard.spmd.propagate import propagate
from jaxpipe.baselines.autoshard.spmd.run_steps import Ran, run_hosts, run_one_device, run_program
from jaxpipe.baselines.autoshard.spmd.sharded_step import (
    NamedStep,
    ShardedProgram,
    abstract_arrays,
    partitioned_step,
    placed,
    shard_program,
    sharded_step,
)
from jaxpipe.baselines.autoshard.spmd.train_step import (
    LossModel,
    initial_state,
    train_step,
    unstacked,
)

__all__ = [
    "Combining",
    "HostProgram",
    "HostSchedule",
    "HostStep",
    "LossModel",
    "NamedStep",
    "OperatorProgram",
    "Ran",
    "ShardedProgram",
    "abstract_arrays",
    "accumulated",
    "baseline",
    "initial_state",
    "local_piece",
    "measured_collectives",
    "measured_segments",
    "partitioned_step",
    "placed",
    "propagate",
    "run_hosts",
    "run_one_device",
    "run_program",
    "schedule_of",
    "shard_program",
    "sharded_step",
    "trace_host_program",
    "trace_program",
    "train_step",
    "unstacked",
]
