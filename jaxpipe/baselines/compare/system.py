"""Systems of a comparison: the configured pipeline, and SPMD baselines."""

import difflib
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from jaxpipe.errors import ConfigError


class System(StrEnum):
    """A training system; all but the pipeline run one sharded step on all ranks (SPMD)."""

    PIPELINE = "pipeline"
    """Stages, microbatches and replicas of the plan."""
    ALPA = "alpa"
    """The strategy that Alpa's integer program finds for the measured links of the ranks."""
    MEGATRON = "megatron"
    """Tensor parallelism over all ranks (Shoeybi et al. 2019, section 3)."""
    ZERO3 = "zero3"
    """Batch, parameters, gradients and moments sharded over all ranks (Rajbhandari et al. 2020)."""
    DDP = "ddp"
    """The batch sharded over all ranks; each has the whole model; gradients in buckets of 25 MiB
    (Li et al. 2020, "PyTorch Distributed")."""
    HOROVOD = "horovod"
    """The same with buckets of 64 MiB (Sergeev and Del Balso 2018)."""
    GSHARD = "gshard"
    """Experts over the ranks, routed by sequence (Lepikhin et al. 2020)."""
    DEEPSPEED_MOE = "deepspeed-moe"
    """Experts over the ranks; the tokens of a rank share slots (Rajbhandari et al. 2022)."""
    FASTMOE = "fastmoe"
    """Experts over the ranks, without a capacity (He et al. 2021)."""
    HIDUP = "hidup"
    """The strategy that the duplex search finds, in two halves (Zhang et al. 2022)."""


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
    choices = [system.value for system in System if system is not System.PIPELINE]
    found: dict[System, None] = {}
    for name in text.split(","):
        if name not in choices:
            nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0)[0]
            raise ConfigError(
                f"`against` must list known systems, not {name!r}: did you mean {nearest!r}? "
                f"choose from {', '.join(choices)}"
            )
        found[System(name)] = None
    return tuple(found)
