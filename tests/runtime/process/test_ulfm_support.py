"""Ranks survive each other where the MPI lets them, and nothing else is promised."""

from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.mpirun import launch_command
from jaxpipe.runtime.process.ulfm_support import SURVIVAL_OPTIONS, check_survival


def launcher(folder: Path, version: str) -> str:
    """Return an `mpirun` that knows its version alone."""
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("survives", [False, True])
def test_open_mpi_is_told_to_let_ranks_survive(tmp_path: Path, survives: bool) -> None:
    mpirun = launcher(tmp_path, "mpirun (Open MPI) 5.0.11")
    command = launch_command(mpirun, num_ranks=2, survives=survives)
    assert (set(SURVIVAL_OPTIONS) <= set(command)) == survives


def test_another_mpi_is_refused(tmp_path: Path) -> None:
    mpirun = launcher(tmp_path, "HYDRA build details")
    launch_command(mpirun, num_ranks=2)
    with pytest.raises(ConfigError, match=r"survival needs Open MPI.* the launcher is .*mpirun"):
        launch_command(mpirun, num_ranks=2, survives=True)
    with pytest.raises(ConfigError, match=r"`--hosts` starts ranks with Open MPI: .*mpirun is ano"):
        launch_command(mpirun, num_ranks=2, hosts=tmp_path / "hosts")


@pytest.mark.parametrize("environment", [{}, {"PMI_RANK": "0"}, {"OMPI_MCA_mpi_ft_enable": "0"}])
def test_a_rank_that_was_started_without_ulfm_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"started with `--with-ft ulfm --mca"):
        check_survival(environment)
