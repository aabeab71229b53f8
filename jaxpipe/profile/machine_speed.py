"""The speed of a core of this machine: measured once, kept, and read without jax.

::

    kept_speed() ──► Speed, or None        a file of the user's cache, in milliseconds
    measured_speed() ──► MeasuredApart     a process of its own, which imports jax: some seconds
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from jaxpipe.profile.measuring_process import MeasuredApart, Measurement, measure_apart
from jaxpipe.runtime.blas.chosen_products import chosen_products
from jaxpipe.runtime.process.user_cache import processor
from jaxpipe.runtime.storage.kept_file import KeptFile
from jaxpipe.topo.machine_limits import usable_cores

_FORMAT = 2
"""Of the file and the method: raise it where numbers would differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one core while all usable ones compute.

    `flops_per_s` is that of products of float32 matrices as ranks compute them; `copy_bytes_per_s`
    that of copies in memory, counted once.
    """

    flops_per_s: float
    copy_bytes_per_s: float

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "copy_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, not {getattr(self, name)}")


def kept_speed(environment: Mapping[str, str] = os.environ) -> Speed | None:
    """Return the speed that was measured on this machine, None if none was. Imports no jax."""
    return _file(environment).read(Speed)


def measured_speed(
    *,
    keep: bool = True,
    environment: Mapping[str, str] = os.environ,
    observe: Callable[[str], None] = lambda _: None,
) -> MeasuredApart[Speed]:
    """Measure the speed of the cores of this machine, and keep it.

    It is not kept where other processes have computed on these cores: then it is measured again the
    next time.
    `observe` is called with what is measured next. Cost: some seconds, in a process for each core,
    which alone import jax.

    Raises:
        ConfigError: the measurement failed.
    """
    measurement = Measurement(module="jaxpipe.profile.speed_process", timeout_s=120.0)
    measured = measure_apart(measurement, Speed, cores=usable_cores(), observe=observe)
    speed = Speed(
        flops_per_s=min(core.flops_per_s for core in measured.value),
        copy_bytes_per_s=min(core.copy_bytes_per_s for core in measured.value),
    )
    if keep and measured.is_alone:
        _file(environment).write(speed)
    return MeasuredApart(value=speed, share=measured.share)


def machine_key(environment: Mapping[str, str]) -> dict[str, str | int]:
    """Return what every measurement on this machine depends on."""
    return {
        "format": _FORMAT,
        "processor": processor(),
        "cores": len(usable_cores()),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "products": chosen_products(environment).name,
    }


def _file(environment: Mapping[str, str]) -> KeptFile:
    return KeptFile(kind="speed", key=machine_key(environment), environment=environment)
