"""ULFM, the fault tolerance of Open MPI: the options of mpirun that enable it."""

from collections.abc import Mapping

from jaxpipe.errors import ConfigError

SURVIVAL_OPTIONS = ("--with-ft", "ulfm", "--mca", "mpi_ft_detector_thread", "true")
"""The detector thread answers heartbeats while a rank compiles, which takes minutes."""

_SET_BY_MPIRUN = "OMPI_MCA_mpi_ft_enable"


def cannot_survive(mpi_name: str) -> ConfigError:
    """Return the error of a run that asks for survival where it is not supported."""
    return ConfigError(
        f"survival needs Open MPI, started with `{' '.join(SURVIVAL_OPTIONS)}`: "
        f"`run.survive` is shrink, the launcher is {mpi_name}; use Open MPI with these options, or "
        "set `run.survive` to restart, and start it with `jaxpipe run`"
    )


def check_survival(environment: Mapping[str, str]) -> None:
    """Check that the launcher of this rank has enabled ULFM.

    >>> check_survival({"OMPI_MCA_mpi_ft_enable": "1"})

    Raises:
        ConfigError: it does not.
    """
    if environment.get(_SET_BY_MPIRUN, "").lower() not in ("1", "true", "enabled", "yes"):
        raise cannot_survive("one without ULFM")
