"""What is compared: the configured pipeline, and ways to run one program on all devices."""

import difflib
from enum import StrEnum

from jaxpipe.errors import ConfigError


class System(StrEnum):
    """Who trains; all but the pipeline run one step, sharded, on all ranks."""

    PIPELINE = "pipeline"
    """Stages, microbatches and replicas, as the plan says."""
    ALPA = "alpa"
    """The strategy that the integer program finds for the links of the plan's cluster."""
    MEGATRON = "megatron"
    """Tensor parallelism over all ranks (Shoeybi et al. 2019, section 3)."""
    ZERO3 = "zero3"
    """Batch, parameters, gradients and moments split over all ranks (Rajbhandari et al. 2020)."""
    DDP = "ddp"
    """The batch split over all ranks; each holds the whole model."""


def systems_from(text: str) -> tuple[System, ...]:
    """Return the systems of a list with commas, each once, in its order.

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
                f"the pipeline is compared with what is known: `against` has {name!r}; the "
                f"nearest is {nearest!r}, the choices are {', '.join(choices)}"
            )
        found[System(name)] = None
    return tuple(found)
