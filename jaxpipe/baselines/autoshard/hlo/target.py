"""Compilation targets: forced host devices, or GPUs that need not be present.

XLA's compiler for GPUs runs without a GPU or driver. A file in `targets/` describes the GPU; the
compiler comes with the extra `aot`. These must be set before jax starts::

    JAX_PLATFORMS=cpu  JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1

`run_python` starts a process with the environment of `target_environment`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import jax

from jaxpipe.errors import ConfigError, RunError

Device: TypeAlias = Any
"""A device of JAX."""

COMBINE_ALL: Final = MappingProxyType(
    {
        f"xla_gpu_{kind}_combine_threshold_bytes": 1 << 60
        for kind in ("all_reduce", "all_gather", "reduce_scatter")
    }
)
"""Combine collectives without a size limit, as Alpa does."""

KEEP_RECOMPUTED: Final = MappingProxyType({"xla_disable_hlo_passes": "cse_barrier_expander"})
"""Keep XLA's CPU compiler from merging recomputation with the forward."""

TIMEOUT_S = 4 * 3600.0
"""Of a process that searches and compiles [s]: ends one that hangs, not one of a large model."""


class CompileTarget(StrEnum):
    """The device that a step is compiled for."""

    CPU = "cpu"
    """Forced host devices: counts and arguments are right, temporaries are a CPU's."""
    V100 = "v100"
    H200 = "h200"


def has_gpu_compiler() -> bool:
    """Return whether the extra `aot` is installed."""
    return find_spec("jax_cuda12_plugin") is not None


def target_environment(num_devices: int) -> Mapping[str, str]:
    """Return the environment of a process that compiles for this many devices of any target."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _FORCED not in flag]
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_FLAGS": " ".join([*flags, f"--{_FORCED}={num_devices}"]),
    }


def run_python(module: str, request: Any, *, num_devices: int, path: Path | None = None) -> Any:
    """Run `python -P -m module`, `request` as JSON on its input; return its last line, parsed.

    The module is an installed one, or one in the folder `path`: Python does not search the working
    directory.

    Raises:
        RunError: the process failed, and the message ends with the last line of its error output;
            or it did not end within `TIMEOUT_S`, and was killed.
    """
    searched = {} if path is None else {"PYTHONPATH": str(path)}
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", module],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            env={**target_environment(num_devices), **searched},
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"`python -m {module}` did not end within {TIMEOUT_S:g} s") from error
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["nothing on its error output"]
        raise RunError(f"`python -m {module}` ended with {process.returncode}: {lines[-1]}")
    # The last line alone: libraries may print before it.
    return json.loads(process.stdout.strip().splitlines()[-1])


def target_devices(target: CompileTarget, *, num_devices: int) -> list[Device]:
    """Return devices to compile for; those of a GPU target cannot run anything.

    Raises:
        ConfigError: the extra `aot` is missing, or this process has too few host devices.
    """
    if target is CompileTarget.CPU:
        return _host_devices(num_devices)
    if not has_gpu_compiler():
        raise ConfigError(
            f"`target` {target.value!r} needs XLA's compiler for GPUs, which is not installed: "
            "pip install 'jaxpipe[aot]'"
        )
    from jax.experimental import topologies

    described = files("jaxpipe.baselines.autoshard.hlo") / "targets" / f"{target.value}.txtpb"
    topology = topologies.get_topology_desc(
        target.value,
        "cuda",
        topology=f"1x1x{num_devices}",  # partitions x hosts of each x GPUs of each
        target_config=described.read_text(encoding="utf-8"),
    )
    return list(topology.devices)


_FORCED = "xla_force_host_platform_device_count"


def _host_devices(num_devices: int) -> list[Device]:
    devices = jax.devices("cpu")
    if len(devices) < num_devices:
        raise ConfigError(
            f"`num_devices` must be at most the {len(devices)} host devices of this process, not "
            f"{num_devices}: start it with XLA_FLAGS=--{_FORCED}={num_devices}"
        )
    return devices[:num_devices]
