"""The memory that XLA allocates for a compiled step on each device, before anything runs."""

from dataclasses import dataclass

from jax.stages import Compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Static allocations of one device, in bytes.

    Args:
        arguments: what the caller passes: state and data.
        outputs: what the step returns, of which `aliased` lies in donated arguments.
        temporaries: what is held in between, at its largest. Of a CPU it says nothing about a
            GPU: fusions, layouts and the order of instructions differ.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def peak(self) -> int:
        """All that is allocated: arguments, temporaries, and outputs that were not donated."""
        return self.arguments + self.temporaries + self.outputs - self.aliased


def step_memory(compiled: Compiled) -> StepMemory:
    """Return what `memory_analysis` of XLA says of a compiled step."""
    stats = compiled.memory_analysis()
    assert stats is not None, "this backend has no memory analysis"
    return StepMemory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
    )
