"""Whether ranks survive each other, by what mpirun and `ompi_info` say of themselves."""

from pathlib import Path

import pytest

from jaxpipe.doctor import Health, judge_survival, judge_survival_of_job
from jaxpipe.runtime.process.mpirun import find_mpirun

OPEN_MPI = "echo 'mpirun (Open MPI) 5.0'"


def mpirun_beside(folder: Path, version: str, info: str | None) -> str:
    """Return an `mpirun` that says its version, and put an `ompi_info` beside it."""
    for name, script in (("mpirun", version), ("ompi_info", info)):
        if script is not None:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    return str(folder / "mpirun")


@pytest.mark.parametrize(
    ("version", "info", "words"),
    [
        (OPEN_MPI, "echo options:ft_mpi_support:yes", "set `run.survive`"),
        (OPEN_MPI, "echo options:ft_mpi_support:no", "built without ULFM"),
        (OPEN_MPI, "exit 1", "built without ULFM"),
        (OPEN_MPI, None, "unknown: `ompi_info`"),
        ("echo HYDRA", None, "is another MPI"),
    ],
    ids=["has it", "has it not", "says nothing", "cannot say", "MPICH"],
)
def test_what_an_mpi_can_do(version: str, info: str | None, words: str, tmp_path: Path):
    finding = judge_survival(mpirun_beside(tmp_path, version, info))
    assert (finding.about, finding.health) == ("survival", Health.OK)
    assert words in finding.message


@pytest.mark.mpi
def test_the_mpi_at_hand_says_something():
    assert judge_survival(find_mpirun()).health is Health.OK


def test_a_job_is_judged_by_how_it_was_started():
    assert judge_survival_of_job({"OMPI_MCA_mpi_ft_enable": "1"}).message.startswith(
        "the other ranks"
    )
    for environment in ({}, {"PMI_RANK": "0"}, {"OMPI_MCA_mpi_ft_enable": "0"}):
        assert "a lost rank ends the job" in judge_survival_of_job(environment).message
