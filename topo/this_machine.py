"""The cluster `this-machine`: one host, and a device for each GPU or core that it may use.

It has no file: its content is found out in milliseconds, without jax::

    this-machine                          all GPUs that jax can use, else all physical cores
    this-machine:devices=4                four devices, which share the memory that there is
    this-machine:devices=2,memory_gib=1   ... and with 1 GiB each

A run writes down the number of its devices, since its ranks may use less of the machine than the
process that planned it. Cores have no speed here: `jaxpipe.profile.machine_speed` measures it.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from jaxpipe.foreign_file import lines_of
from jaxpipe.topo.cluster_file import MAX_DEVICES
from jaxpipe.topo.gpu import gpu, gpu_names
from jaxpipe.topo.machine_limits import memory_bytes, usable_cores
from jaxpipe.topo.nvidia import gpu_link_speed
from jaxpipe.topo.parameters import Value
from jaxpipe.topo.units import gib_from_bytes

THIS_MACHINE = "this-machine"
_CORE_LINK: Mapping[str, Value] = {"latency_ms": 0.02, "bandwidth_gbps": 30}
"""Of messages between two processes: Open MPI copies them into shared memory and out of it."""
_GPU_LINK = "PHB"
"""PCIe: which GPUs have NVLinks only `nvidia-smi` says, which takes seconds."""
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")


def file_of_this_machine(
    settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Value]:
    """Return the content of a cluster file of this machine, with its parameters."""
    num_gpus = num_jax_gpus(environment)
    num_devices = num_gpus or len(usable_cores())
    host: dict[str, Value] = {"name": "here", "devices": "$devices"}
    parameters: dict[str, Value] = {"devices": num_devices}
    kind = gpu_here() if num_gpus else None
    if kind is not None:
        host["gpu"] = kind
        parameters["memory_gib"] = gib_from_bytes(gpu(kind).memory_bytes)
    elif not num_gpus and (num_bytes := memory_bytes()) is not None:
        wanted = settings.get("devices", "")
        sharing = int(wanted) if wanted.isdecimal() and int(wanted) else num_devices
        # Beyond the most, the number itself is refused, not what would be left of the memory.
        sharing = min(sharing, MAX_DEVICES)
        parameters["memory_gib"] = gib_from_bytes(num_bytes) / sharing
    if "memory_gib" in parameters:
        host["memory_gib"] = "$memory_gib"
    return {
        "name": THIS_MACHINE,
        "parameters": parameters,
        "hosts": [host],
        "inside_host": _gpu_link() if num_gpus else _CORE_LINK,
    }


def is_this_machine(name: str) -> bool:
    """Return whether the name of a cluster is that of this machine, with or without parameters.

    >>> is_this_machine("this-machine:devices=4"), is_this_machine("laptop")
    (True, False)
    """
    return name.partition(":")[0] == THIS_MACHINE


def num_jax_gpus(environment: Mapping[str, str]) -> int:
    """Return the number of NVIDIA GPUs on which jax, once imported, would compute."""
    platforms = environment.get("JAX_PLATFORMS", "")
    is_wanted = not platforms or platforms.split(",")[0] in ("cuda", "gpu")
    has_plugin = any(find_spec(plugin) is not None for plugin in _PLUGINS)
    return count_gpus(environment, _DEVICES) if is_wanted and has_plugin else 0


def count_gpus(environment: Mapping[str, str], devices: Path) -> int:
    """Return the number of GPUs that CUDA shows to this process.

    It follows from `CUDA_VISIBLE_DEVICES`, in which the first number below 0 ends the list, as for
    CUDA; without it, from the files in the folder `devices`.

    >>> count_gpus({"CUDA_VISIBLE_DEVICES": "4,6,-1,7"}, Path("/dev"))
    2
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return sum(file.name[6:].isdigit() for file in devices.glob("nvidia[0-9]*"))
    names = (name.strip() for name in visible.split(","))
    return len([*takewhile(lambda name: name and not name.startswith("-"), names)])


def gpu_of_model(model: str) -> str | None:
    """Return the row of `data/gpus.csv` for the name that the driver gives a GPU, None without one.

    All words of the row's name must be in the driver's; of several rows the longest name counts.

    >>> gpu_of_model("NVIDIA H100 80GB HBM3"), gpu_of_model("Tesla V100-SXM2-16GB")
    ('H100', 'V100-SXM2')
    >>> gpu_of_model("NVIDIA A100-SXM4-80GB"), gpu_of_model("Quadro K620")
    ('A100-80GB', None)
    """
    words = set(re.split(r"[\s-]+", model))
    rows = [name for name in gpu_names() if set(name.split("-")) <= words]
    return max(rows, key=len, default=None)


def gpu_here() -> str | None:
    """Return the row of `data/gpus.csv` for the first GPU of this machine, None without one."""
    return gpu_of_model(_gpu_model(_DRIVER))


def _gpu_model(driver: Path) -> str:
    """Return the name of the first GPU as the driver gives it; "" if it is unknown."""
    for file in sorted(driver.glob("*/information")):
        for line in lines_of(file.read_text()):
            key, _, value = line.partition(":")
            if key == "Model":
                return value.strip()
    return ""


def _gpu_link() -> Mapping[str, Value]:
    speed = gpu_link_speed(_GPU_LINK)
    return {"latency_ms": speed.latency_ms, "bandwidth_gbps": speed.bandwidth_gbps}
