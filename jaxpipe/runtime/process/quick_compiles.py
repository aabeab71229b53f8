"""XLA's flags for processes that compile a lot and compute little; nothing here imports jax."""

from collections.abc import Mapping
from importlib.metadata import version

from jaxpipe.runtime.process.affinity import NUM_THREADS

_THREADS_OF_DEVICE = 4

# Without optimization, these emitters take most of a compilation: of 2.1 s of processor time for a
# step of three layers, 0.6 s are left without them (measured). jaxlib 0.11 and newer do not know
# the flag, and XLA ends a process with a flag that it does not know.
_WITHOUT_EMITTERS = (
    ("--xla_cpu_use_fusion_emitters=false",) if version("jaxlib").startswith("0.10.") else ()
)

QUICKLY_COMPILED = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
        *_WITHOUT_EMITTERS,
    )
)
"""Less time for the compiler, more for a step: for `jaxpipe verify`, and for tests."""


def quick_flags(given: str, *, num_devices: int = 1) -> str:
    """Return `XLA_FLAGS` for a process with this many devices of the CPU; those given win.

    >>> quick_flags("--xla_a=1", num_devices=4).split()[-2:]
    ['--xla_force_host_platform_device_count=4', '--xla_a=1']
    """
    devices = f"--xla_force_host_platform_device_count={num_devices}"
    return " ".join((QUICKLY_COMPILED, *((devices,) if num_devices > 1 else ()), given)).strip()


def threads_of_devices(environment: Mapping[str, str], *, num_devices: int) -> dict[str, str]:
    """Return the variable by which XLA has threads for the collectives of ranks in one process.

    A collective holds a thread until all of its devices have joined. With a thread for each device,
    two ranks of two devices each waited for one another on two busy cores, in 3 of 6 certificates,
    until XLA ended the process after 40 s; in none of 12 with 16 threads. A given number wins.

    >>> threads_of_devices({}, num_devices=4)
    {'NPROC': '16'}
    >>> threads_of_devices({}, num_devices=1), threads_of_devices({"NPROC": "2"}, num_devices=4)
    ({}, {})
    """
    if num_devices == 1 or NUM_THREADS in environment:
        return {}
    return {NUM_THREADS: str(_THREADS_OF_DEVICE * num_devices)}
