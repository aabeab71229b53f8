"""The rank of this process as its launcher states it, before MPI starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxpipe.errors import ConfigError

_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """The rank of this process and the number of ranks, from the environment of the launcher."""

    rank: int
    num_ranks: int


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return the rank of this process, before MPI starts; None if no launcher has started it.

    >>> launched_rank({"PMI_RANK": "1", "PMI_SIZE": "4"})
    LaunchedRank(rank=1, num_ranks=4)
    >>> launched_rank({})
    """
    for rank, size in _RANK_AND_SIZE:
        if rank in environment and size in environment:
            return LaunchedRank(rank=int(environment[rank]), num_ranks=int(environment[size]))
    return None


def rank_here(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return the rank of this process for what is run by all ranks; see `launched_rank`.

    >>> rank_here({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})

    Raises:
        ConfigError: `srun` has started several tasks, and MPI would find each of them alone.
    """
    here = launched_rank(environment)
    num_tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if here is None and "SLURM_PROCID" in environment and num_tasks not in ("", "1"):
        raise ConfigError(
            f"`srun` has started {num_tasks:.20} tasks without PMIx, so each is a run of its own; "
            "use srun --mpi=pmix (srun --mpi=list shows what there is), or mpirun inside of sbatch"
        )
    return here


def check_number_of_ranks(here: LaunchedRank | None, *, num_found: int) -> None:
    """Check that MPI has found the ranks that the launcher has started.

    Raises:
        ConfigError: it has not: the launcher's protocol is another one.
    """
    if here is not None and here.num_ranks != num_found:
        raise ConfigError(
            f"`mpirun` or `srun` has started {here.num_ranks} ranks, MPI has found {num_found}: "
            "the launcher is that of another MPI; start with the `mpirun` of the environment of "
            "mpi4py, or with srun --mpi=pmix"
        )


def check_launched_rank(here: LaunchedRank | None, *, num_ranks: int) -> None:
    """Check that the launcher has started the number of ranks that the plan has.

    Raises:
        ConfigError: it has not.
    """
    if here is not None and here.num_ranks != num_ranks:
        raise ConfigError(
            f"`plan` has {num_ranks} ranks, but {here.num_ranks} were started; use mpirun -n "
            f"{num_ranks}"
        )
