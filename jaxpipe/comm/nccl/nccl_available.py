"""Find a Python package that can call NCCL here."""

from collections.abc import Callable, Sequence

import jax

from jaxpipe.comm.nccl.binding import NcclBinding
from jaxpipe.comm.nccl.cupy import CupyBinding
from jaxpipe.comm.nccl.nccl4py import Nccl4pyBinding

_BINDINGS: tuple[Callable[[int], NcclBinding], ...] = (Nccl4pyBinding, CupyBinding)


def find_binding(
    platform: str,
    *,
    device_id: int,
    bindings: Sequence[Callable[[int], NcclBinding]] = _BINDINGS,
) -> NcclBinding | str:
    """Return the first binding that is installed, for the device, or say what is missing.

    >>> find_binding("cpu", device_id=0)
    'jax has no NVIDIA GPU here, its platform is cpu; install jaxpipe[cuda12] or jaxpipe[cuda13]'
    """
    if platform not in ("gpu", "cuda"):
        return (
            f"jax has no NVIDIA GPU here, its platform is {platform}; install jaxpipe[cuda12] or "
            "jaxpipe[cuda13]"
        )
    missing = []
    for binding in bindings:
        try:
            return binding(device_id)
        except ImportError as error:
            missing.append(str(error))
    return (
        f"no package here calls NCCL ({'; '.join(missing)}); install jaxpipe[cuda12] or "
        "jaxpipe[cuda13]"
    )


def local_binding() -> NcclBinding | str:
    """Return the binding for this rank's first device, or say what is missing."""
    device = jax.local_devices()[0]
    return find_binding(device.platform, device_id=device.local_hardware_id or 0)
