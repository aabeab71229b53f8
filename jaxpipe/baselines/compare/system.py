"""Systems of a comparison: which split what, what overlaps in them, and how ranks run them."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from jaxpipe.baselines.systems import System, Way, system_named


class Executor(StrEnum):
    """How the ranks run the step of an SPMD system."""

    SPMD = "spmd"
    """One program of XLA's, which runs the collectives."""
    HOST = "host"
    """Segments between collectives; the host runs these on a thread, during segments."""


SPLITS_EXPERTS: Final = frozenset((System.GSHARD, System.DEEPSPEED_MOE, System.FASTMOE))
"""Systems for models with experts alone."""

SPLITS_BATCH: Final = SPLITS_EXPERTS | {System.DDP, System.HOROVOD, System.ZERO3}
"""Systems in which each rank has as many samples."""

SEARCHES: Final = frozenset((System.ALPA, System.HIDUP))
"""Systems that search for a strategy, and measure speeds for it first."""

OVERLAPS: Final[Mapping[System, str]] = MappingProxyType(
    {
        System.PIPELINE: "messages and gradients, under products",
        System.ALPA: "nothing by plan",
        System.MEGATRON: "nothing",
        System.ZERO3: "parameters and gradients of other layers",
        System.DDP: "gradients in buckets of 25 MiB, under the backward",
        System.HOROVOD: "gradients in buckets of 64 MiB, under the backward",
        System.GSHARD: "nothing",
        System.DEEPSPEED_MOE: "nothing",
        System.FASTMOE: "nothing",
        System.HIDUP: "collectives of a half, under products of the other",
    }
)
"""What a system may communicate while it computes: as published, and by its dependences here."""


def systems_from(text: str) -> tuple[System, ...]:
    """Return the systems of a comma-separated list, each once, in its order.

    >>> [system.value for system in systems_from("ddp,zero3,ddp")]
    ['ddp', 'zero3']

    Raises:
        ConfigError: a name is unknown.
    """
    pipeline = frozenset((System.PIPELINE,))
    names = text.split(",")
    systems = [system_named(name, Way.EXECUTE, field="against", besides=pipeline) for name in names]
    return tuple(dict.fromkeys(systems))
