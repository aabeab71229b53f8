"""Systems of a comparison: the configured pipeline, and SPMD baselines."""

import difflib
from enum import StrEnum

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
    """The batch sharded over all ranks; each has the whole model."""


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
