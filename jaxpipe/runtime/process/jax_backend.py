"""The backends that jax has in this process, found out without importing it."""

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec

from jaxpipe.errors import ConfigError
from jaxpipe.topo.this_machine import num_jax_gpus

_VARIABLE = "JAX_PLATFORMS"
_LACKING = {
    "cuda": "jax's plugin for CUDA or a GPU",
    "gpu": "jax's plugin for CUDA or a GPU",
    "rocm": "jax's plugin for ROCm",
    "tpu": "libtpu",
}
_PASSED_OVER = frozenset(("cuda", "gpu", "rocm"))
"""The names that jax passes over if it lacks the plugin."""


def check_platforms(environment: Mapping[str, str]) -> None:
    """Check that jax has the backends that `JAX_PLATFORMS` names.

    jax passes over a GPU without a plugin, and ends in a bare assertion if no backend is left.

    >>> check_platforms({}), check_platforms({"JAX_PLATFORMS": "cuda,cpu"})
    (None, None)

    Raises:
        ConfigError: it lacks one that it does not pass over, or all of them.
    """
    platforms = environment.get(_VARIABLE, "")
    names = [name.strip() for name in platforms.split(",") if name.strip()]
    missing = [name for name in names if not _is_available(name, environment)]
    if missing and (not _PASSED_OVER.issuperset(missing) or missing == names):
        name = next((name for name in missing if name not in _PASSED_OVER), missing[0])
        raise ConfigError(
            f"`{_VARIABLE}` ({platforms!r:.80}) must name backends of jax on this host, and "
            f"{_LACKING.get(name, f'a plugin for {name!r:.40}')} is missing; set it to cpu, or "
            "leave it out"
        )


def num_jax_devices(environment: Mapping[str, str]) -> int:
    """Return the number of devices that jax, once imported, shows to a process of this host.

    >>> num_jax_devices({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--a=b"})
    1
    >>> num_jax_devices({"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"})
    4
    """
    if num_gpus := num_jax_gpus(environment):
        return num_gpus
    # The last flag wins, and the variable over the flag.
    cores = environment.get("JAX_NUM_CPU_DEVICES", "")
    forced = _FORCED.findall(environment.get("XLA_FLAGS", ""))
    return int(cores) if cores.isdecimal() else int(forced[-1]) if forced else 1


_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d{1,6})\b")


def _is_available(name: str, environment: Mapping[str, str]) -> bool:
    has_rocm = any(find_spec(f"jax_rocm{version}_plugin") for version in (60, 7))
    if name in ("cuda", "gpu"):
        # Of `gpu` alone: jax takes whichever plugin there is.
        return num_jax_gpus({**environment, _VARIABLE: ""}) > 0 or (name == "gpu" and has_rocm)
    if name in ("rocm", "tpu"):
        return has_rocm if name == "rocm" else find_spec("libtpu") is not None
    # A plugin may bring a backend of any name.
    return name == "cpu" or bool(entry_points(group="jax_plugins"))
