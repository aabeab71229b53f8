"""Which GPUs of its host a rank takes, by its number among the ranks there.

::

    host with GPUs 0 1 2 3      local rank 0    local rank 1    local rank 2    local rank 3
    a rank has one device       GPU 0           GPU 1           GPU 2           GPU 3
    it has two                  GPUs 0 1        GPUs 2 3        GPUs 0 1 again  GPUs 2 3 again

A launcher that has left one device to each rank, as `srun --gpus-per-task=1` does, is not
overruled, and neither is who sets `JAX_CUDA_VISIBLE_DEVICES`.
"""

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""What Open MPI, MPICH and SLURM call it, in this order: an mpirun may run inside of SLURM."""


def take_devices(environment: Mapping[str, str], *, each: int) -> None:
    """Let jax see the `each` GPUs of this rank alone, before it starts a backend.

    Without GPUs, or where no launcher says which rank of its host this is, nothing changes.
    """
    chosen = devices_of(environment, each=each, num_gpus=count_gpus(environment, Path("/dev")))
    if chosen is not None:
        import jax

        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, chosen)))


def devices_of(environment: Mapping[str, str], *, each: int, num_gpus: int) -> range | None:
    """Return which of the `num_gpus` that CUDA shows to this rank are its own.

    Ranks that are more than there are GPUs for share them, in turn. None leaves all of them to it:
    where there is but one, or fewer than `each`, or nothing tells local ranks apart.

    >>> devices_of({"SLURM_LOCALID": "3"}, each=1, num_gpus=4)
    range(3, 4)
    >>> devices_of({"MPI_LOCALRANKID": "1"}, each=2, num_gpus=4)
    range(2, 4)
    >>> devices_of({"MPI_LOCALRANKID": "1"}, each=1, num_gpus=1)
    """
    found = [environment[name] for name in _LOCAL_RANKS if name in environment]
    if not found or "JAX_CUDA_VISIBLE_DEVICES" in environment or num_gpus < max(2, each):
        return None
    first = int(found[0]) % (num_gpus // each) * each
    return range(first, first + each)


def count_gpus(environment: Mapping[str, str], devices: Path) -> int:
    """Return how many GPUs CUDA shows to this process, by what it is told and by their files.

    `devices` is the folder of device files. As for CUDA, the first number below 0 ends the list.

    >>> count_gpus({"CUDA_VISIBLE_DEVICES": "4,6,-1,7"}, Path("/dev"))
    2
    """
    told = environment.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        return sum(file.name[6:].isdigit() for file in devices.glob("nvidia[0-9]*"))
    names = (name.strip() for name in told.split(","))
    return len([*takewhile(lambda name: name and not name.startswith("-"), names)])


def gpu_name(number: int | None, environment: Mapping[str, str]) -> str:
    """Return what the host calls the GPU that has this number in this process.

    >>> gpu_name(1, {}), gpu_name(1, {"CUDA_VISIBLE_DEVICES": "4,6"})
    ('GPU 1', 'GPU 6')
    """
    number = number or 0
    told = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return f"GPU {told[number] if number < len(told) and told[number] else number}"
