"""Analyse a compiled step: its collectives, memory and overlap of communication."""

from jaxpipe.baselines.autoshard.hlo.compiled import (
    CompiledStep,
    StepMemory,
    compile_step,
    step_memory,
)
from jaxpipe.baselines.autoshard.hlo.hlo_collectives import (
    ELEMENT_BYTES,
    SHORT_NAMES,
    HloCollective,
    HloKind,
    bytes_by_kind,
    collectives,
    count_collectives,
)
from jaxpipe.baselines.autoshard.hlo.overlap import AsyncCollective, async_collectives
from jaxpipe.baselines.autoshard.hlo.target import (
    COMBINE_ALL,
    KEEP_RECOMPUTED,
    CompileTarget,
    has_gpu_compiler,
    run_python,
    target_devices,
    target_environment,
)
from jaxpipe.baselines.autoshard.hlo.target_speeds import TargetSpeeds, target_speeds

__all__ = [
    "COMBINE_ALL",
    "ELEMENT_BYTES",
    "KEEP_RECOMPUTED",
    "SHORT_NAMES",
    "AsyncCollective",
    "CompileTarget",
    "CompiledStep",
    "HloCollective",
    "HloKind",
    "StepMemory",
    "TargetSpeeds",
    "async_collectives",
    "bytes_by_kind",
    "collectives",
    "compile_step",
    "count_collectives",
    "has_gpu_compiler",
    "run_python",
    "step_memory",
    "target_devices",
    "target_environment",
    "target_speeds",
]
