"""The launchers that `jaxpipe launch` writes for, and the options that each of them takes."""

from collections.abc import Mapping
from enum import StrEnum

from jaxpipe.errors import ConfigError


class LaunchTarget(StrEnum):
    """The launcher of the run."""

    MPIRUN = "mpirun"
    """Open MPI's mpirun, from one of the hosts."""
    SLURM = "slurm"
    """A batch script for sbatch."""
    MPIJOB = "mpijob"
    """A manifest of Kubeflow's MPI operator."""
    SKYPILOT = "skypilot"
    """Task files of SkyPilot, one for each region of the plan."""
    DOCKER = "docker"
    """A script that builds the image of the two above from the Dockerfile of a clone."""


OPTIONS_OF: Mapping[LaunchTarget, tuple[str, ...]] = {
    LaunchTarget.MPIRUN: (),
    LaunchTarget.SLURM: ("time", "notice", "mpi"),
    LaunchTarget.MPIJOB: ("image", "claim"),
    LaunchTarget.SKYPILOT: ("image", "out"),
    LaunchTarget.DOCKER: ("image",),
}
"""Beside those that all targets take."""


def targets_of(option: str) -> tuple[LaunchTarget, ...]:
    """Return the targets that take an option.

    >>> [str(target) for target in targets_of("image")]
    ['mpijob', 'skypilot', 'docker']
    """
    return tuple(target for target, options in OPTIONS_OF.items() if option in options)


def check_options(target: LaunchTarget, options: Mapping[str, object]) -> None:
    """Check that a target takes all options that are not None.

    Raises:
        ConfigError: it does not take one.
    """
    for option, value in options.items():
        if value is not None and option not in OPTIONS_OF[target]:
            takers = " and ".join(targets_of(option))
            raise ConfigError(
                f"`--{option}` is an option of `--target` {takers}, and `--target` {target} does "
                "not take it: leave it out"
            )
