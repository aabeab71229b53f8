"""The GPUs of a rank, by its local rank on its host.

::

    host with GPUs 0 1 2 3      local rank 0    local rank 1    local rank 2    local rank 3
    a rank has one device       GPU 0           GPU 1           GPU 2           GPU 3
    it has two                  GPUs 0 1        GPUs 2 3        GPUs 0 1 again  GPUs 2 3 again

An assignment by the launcher, such as `srun --gpus-per-task=1`, takes precedence, and so does
`JAX_CUDA_VISIBLE_DEVICES`. If all devices of the plan are on one host, each rank takes the GPU of
its device's number instead: a plan without the device of a lost rank then leaves that GPU out.
Ranks of several devices take those that the plan names, on any number of hosts.

A process of jax takes three quarters of a GPU's memory when it starts. Ranks that share GPUs, for
trials on few of them, each take a part of that share instead: the first would leave the second
nothing.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from jaxpipe.topo.this_machine import count_gpus

_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""The variables of Open MPI, MPICH and SLURM; SLURM last, since it may run an mpirun."""

_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
"""Of the same, the variables that state how many ranks a host has."""

_MEMORY_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_TOLD_MEMORY = (
    *(_MEMORY_FRACTION, "XLA_PYTHON_CLIENT_MEM_FRACTION"),
    *("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"),
)
_SHARED_FRACTION = 0.9
"""Of a GPU's memory, for all ranks that share it: CUDA keeps some for every process."""


def take_devices(
    environment: MutableMapping[str, str],
    *,
    each: int,
    number: int | None = None,
    group: Sequence[str] = (),
) -> None:
    """Restrict jax to the `each` GPUs of this rank, before it starts a backend.

    `number` is that of its device on its host, if the plan says which; by default its local rank.
    Of several devices of a plan, `group` has the names. Without GPUs, or without a launcher that
    states the local rank, nothing changes. Where ranks share GPUs, `environment`, which is that of
    this process, says how much memory of them jax takes.
    """
    num_gpus = count_gpus(environment, Path("/dev"))
    fraction = memory_fraction(environment, per_rank=each, num_gpus=num_gpus)
    if fraction is not None:
        environment[_MEMORY_FRACTION] = f"{fraction:.3f}"
    devices = devices_of(environment, per_rank=each, num_gpus=num_gpus, number=number)
    if devices is not None and len(group) > 1:
        devices = numbers_of(group, num_gpus=num_gpus) or devices
    if devices is not None:
        import jax

        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, devices)))


def number_on_host(devices: Sequence[str], rank: int) -> int | None:
    """Return the number of a rank's device on its host, None if the devices are on several hosts.

    Those of several hosts may all be emulated on this one.

    >>> number_on_host(["a:0", "a:2"], 1), number_on_host(["a:0", "b:0"], 1)
    (2, None)
    """
    hosts = {name.rpartition(":")[0] for name in devices}
    number = devices[rank].rpartition(":")[2]
    return int(number) if len(hosts) == 1 and number.isdecimal() else None


def numbers_of(group: Sequence[str], *, num_gpus: int) -> tuple[int, ...]:
    """Return the numbers of named devices on their host; none if it has too few GPUs for them.

    >>> numbers_of(["a:2", "a:3"], num_gpus=4), numbers_of(["a:2", "a:3"], num_gpus=2)
    ((2, 3), ())
    """
    numbers = [name.rpartition(":")[2] for name in group]
    fit = all(number.isdecimal() and int(number) < num_gpus for number in numbers)
    return tuple(map(int, numbers)) if fit else ()


def devices_of(
    environment: Mapping[str, str], *, per_rank: int, num_gpus: int, number: int | None = None
) -> range | None:
    """Return which of the `num_gpus` that CUDA shows to this rank belong to it.

    If there are too few GPUs, ranks share them in turn. None leaves all of them to the rank: if
    there is only one, or fewer than `per_rank`, or the local rank is unknown.

    >>> devices_of({"SLURM_LOCALID": "3"}, per_rank=1, num_gpus=4)
    range(3, 4)
    >>> devices_of({"MPI_LOCALRANKID": "1"}, per_rank=2, num_gpus=4)
    range(2, 4)
    >>> devices_of({"SLURM_LOCALID": "1"}, per_rank=1, num_gpus=4, number=2)
    range(2, 3)
    >>> devices_of({"MPI_LOCALRANKID": "1"}, per_rank=1, num_gpus=1)
    """
    numbers = [environment[name] for name in _LOCAL_RANKS if name in environment]
    if not numbers or "JAX_CUDA_VISIBLE_DEVICES" in environment or num_gpus < max(2, per_rank):
        return None
    local_rank = int(numbers[0]) if number is None else number
    first = local_rank % (num_gpus // per_rank) * per_rank
    return range(first, first + per_rank)


def memory_fraction(
    environment: Mapping[str, str], *, per_rank: int, num_gpus: int
) -> float | None:
    """Return the part of a GPU's memory that a rank has, of those that share it.

    None where no rank shares one, where the launcher does not say how many ranks the host has, and
    where the environment already says what jax takes.

    >>> memory_fraction({"MPI_LOCALNRANKS": "4"}, per_rank=1, num_gpus=2)
    0.45
    >>> memory_fraction({"MPI_LOCALNRANKS": "4"}, per_rank=1, num_gpus=4)
    """
    sizes = [environment[name] for name in _LOCAL_SIZES if environment.get(name, "").isdecimal()]
    if not sizes or num_gpus == 0 or any(name in environment for name in _TOLD_MEMORY):
        return None
    num_sharing = -(-int(sizes[0]) // max(1, num_gpus // per_rank))
    return _SHARED_FRACTION / num_sharing if num_sharing > 1 else None


def gpu_name(number: int | None, environment: Mapping[str, str]) -> str:
    """Return the host's name of the GPU that has this number in this process.

    >>> gpu_name(1, {}), gpu_name(1, {"CUDA_VISIBLE_DEVICES": "4,6"})
    ('GPU 1', 'GPU 6')
    """
    number = number or 0
    names = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return f"GPU {names[number] if number < len(names) and names[number] else number}"
