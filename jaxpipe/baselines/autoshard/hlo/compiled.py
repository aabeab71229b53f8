"""Compile a step for a target, and read its collectives, memory and overlap."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.stages import Compiled

from jaxpipe.baselines.autoshard.hlo.hlo_collectives import HloCollective, collectives
from jaxpipe.baselines.autoshard.hlo.overlap import AsyncCollective, async_collectives
from jaxpipe.baselines.autoshard.hlo.target import COMBINE_ALL, KEEP_RECOMPUTED, CompileTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Static allocations of one device, in bytes.

    Args:
        arguments: what the caller passes: state and data.
        outputs: what the step returns, of which `aliased` lies in donated arguments.
        temporaries: the peak of intermediate arrays. That of a CPU says nothing about a
            GPU: fusions, layouts and the order of instructions differ.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def peak(self) -> int:
        """All that is allocated: arguments, temporaries, and outputs that were not donated."""
        # An aliased output lies in an argument, and is counted there.
        return self.arguments + self.temporaries + self.outputs - self.aliased


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """The compiler's description of a step.

    Args:
        target: the device that it is compiled for.
        collectives: in the order of the text.
        memory: of one device.
        asynchronous: the collectives that may overlap computation, if the target has any.
        compile_s: seconds to lower and compile.
    """

    target: CompileTarget
    collectives: tuple[HloCollective, ...]
    memory: StepMemory
    asynchronous: tuple[AsyncCollective, ...]
    compile_s: float


def compile_step(
    step: Callable[..., Any], arguments: Sequence[Any], target: CompileTarget
) -> CompiledStep:
    """Compile a jitted step, whose arguments are abstract and placed on devices of the target.

    Collectives are combined without bound, and recomputation is kept, as in the
    published tables. Nothing runs and no array is allocated: any size can be compiled.
    """
    # Tracing counts too: it is Python, and may take seconds for an unrolled model.
    start = time.perf_counter()
    traced = step.trace(*arguments)  # type: ignore[attr-defined]
    if target is CompileTarget.CPU:
        compiled = traced.lower().compile(dict(KEEP_RECOMPUTED))
    else:
        compiled = traced.lower(lowering_platforms=("cuda",)).compile(dict(COMBINE_ALL))
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    return CompiledStep(
        target=target,
        collectives=collectives(text),
        memory=step_memory(compiled),
        asynchronous=async_collectives(text),
        compile_s=seconds,
    )


def step_memory(compiled: Compiled) -> StepMemory:
    """Return the result of XLA's `memory_analysis` for a compiled step."""
    stats = compiled.memory_analysis()
    assert stats is not None, "this backend has no memory analysis"
    return StepMemory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
    )
