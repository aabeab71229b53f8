"""Pin a rank that computes on the CPU to a core, before jax and MPI start."""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from jaxpipe.runtime.process.core_claims import claim_cores
from jaxpipe.runtime.process.memory_settings import allow_arenas
from jaxpipe.topo.machine_limits import limited_cores, usable_cores
from jaxpipe.topo.this_machine import num_jax_gpus

_LOCAL_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


NUM_THREADS = "NPROC"
"""XLA's variable for the threads of a CPU: a rank that is not pinned computes with one as well."""


def pin(environment: MutableMapping[str, str]) -> None:
    """Pin this rank to a core of its own, if its host has a free one for each of its ranks.

    A binding by the launcher takes precedence, and cores to which others are pinned are left alone.
    Where too few are free, ranks share them, with one thread each. XLA starts one thread per core
    of the process, so this must come before jax.

    A rank with a GPU is not pinned, and its threads may have arenas of memory: what its cores do is
    compile. A stage of GPT-XL took 26 s for its forward and 61 s for its backward on one core of a
    host with an H200, and 4 and 10 s on 16 (measured, each once, with other processes beside it).
    """
    if num_jax_gpus(environment) > 0:
        allow_arenas()
        return
    here = local_rank(environment)
    if here is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = usable_cores()  # before the process is pinned: they are those of the first call
    allowed = os.sched_getaffinity(0)
    is_bound = len(allowed) == 1 or allowed != os.sched_getaffinity(os.getppid())
    if is_bound or here.num_ranks > len(cores):
        return
    # Under a quota any core will do: numbers do not say which ones other containers use.
    has_quota = len(cores) < len(limited_cores(allowed, has_quota=False))
    claimed = [] if has_quota else claim_cores(here.num_ranks, cores)
    if claimed:
        os.sched_setaffinity(0, {claimed[here.rank]})
    else:
        environment[NUM_THREADS] = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRank:
    """The position of a rank among those of its host, and their number."""

    rank: int
    num_ranks: int


def local_rank(environment: Mapping[str, str]) -> LocalRank | None:
    """Return the local rank that the launcher states, None if it states none.

    >>> local_rank({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"})
    LocalRank(rank=1, num_ranks=2)
    """
    for rank, size in _LOCAL_RANK_AND_SIZE:
        if rank in environment and size in environment:
            return LocalRank(rank=int(environment[rank]), num_ranks=int(environment[size]))
    return None
