"""What an MPI needs to let ranks survive others: Open MPI's ULFM, which mpirun has to turn on."""

from collections.abc import Mapping

from jaxpipe.errors import ConfigError

SURVIVAL_OPTIONS = ("--with-ft", "ulfm", "--mca", "mpi_ft_detector_thread", "true")
"""The thread answers for a rank that compiles for long."""

_SET_BY_MPIRUN = "OMPI_MCA_mpi_ft_enable"


def cannot_survive(found: str) -> ConfigError:
    """Return the error of a run that shall survive lost ranks and cannot."""
    return ConfigError(
        f"ranks survive others in Open MPI alone, started with `{' '.join(SURVIVAL_OPTIONS)}`: "
        f"`run.survive` is shrink, the launcher is {found}; use Open MPI with these options, or "
        "set `run.survive` to restart, and start it with `jaxpipe run`"
    )


def check_survival(environment: Mapping[str, str]) -> None:
    """Check that the launcher of this rank lets others survive it.

    >>> check_survival({"OMPI_MCA_mpi_ft_enable": "1"})

    Raises:
        ConfigError: it does not.
    """
    if environment.get(_SET_BY_MPIRUN, "").lower() not in ("1", "true", "enabled", "yes"):
        raise cannot_survive("one without ULFM")
