"""How ranks are started, and told apart."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.launched_rank import (
    LaunchedRank,
    check_launched_rank,
    check_number_of_ranks,
    launched_rank,
    rank_here,
)
from jaxpipe.runtime.process.mpirun import launch_command
from tests.helpers import mpi_command


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "2"}, None),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, LaunchedRank(rank=2, num_ranks=3)),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            LaunchedRank(rank=0, num_ranks=1),
        ),
    ],
)
def test_seats(environment: dict[str, str], expected: LaunchedRank | None):
    assert launched_rank(environment) == expected


def test_a_seat_must_fit_the_plan():
    check_launched_rank(None, num_ranks=4)
    check_launched_rank(LaunchedRank(rank=0, num_ranks=4), num_ranks=4)
    with pytest.raises(ConfigError, match=r"has 4 ranks, but 5 were started; use mpirun -n 4"):
        check_launched_rank(LaunchedRank(rank=0, num_ranks=5), num_ranks=4)


@pytest.mark.parametrize(
    ("environment", "is_refused"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "4"}, False),  # inside of sbatch, where mpirun follows
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "2"}, False),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "0", "PMI_SIZE": "2"},
            False,
        ),
    ],
)
def test_tasks_of_srun_without_pmix_are_refused(environment: dict[str, str], is_refused: bool):
    if not is_refused:
        assert rank_here(environment) == launched_rank(environment)
        return
    with pytest.raises(ConfigError, match=r"`srun` has started 4 tasks without PMIx.*--mpi=pmix"):
        rank_here(environment)


def test_mpi_must_find_the_ranks_that_were_started():
    check_number_of_ranks(None, num_found=1)
    check_number_of_ranks(LaunchedRank(rank=0, num_ranks=4), num_found=4)
    with pytest.raises(ConfigError, match=r"has started 4 ranks, MPI has found 1: "):
        check_number_of_ranks(LaunchedRank(rank=0, num_ranks=4), num_found=1)


@pytest.mark.mpi
def test_the_command_that_starts_ranks_does_so():
    mpirun = mpi_command(1)[0]
    command = [*launch_command(mpirun, num_ranks=3), sys.executable, "-c"]
    code = (
        "import os; from jaxpipe.runtime.process.launched_rank import launched_rank; "
        "print(launched_rank(os.environ))"
    )
    output = subprocess.run([*command, code], capture_output=True, text=True, check=True).stdout
    assert sorted(output.split("\n")) == [
        "",
        *(f"LaunchedRank(rank={r}, num_ranks=3)" for r in range(3)),
    ]


@pytest.mark.mpi
def test_ranks_die_with_their_launcher():
    dies = "from jaxpipe.runtime.process.process_signals import die_with_parent as d; d(); "
    code = f"import time; {dies}"
    nap = f"time.sleep({time.time()})"  # found again by its length
    launcher = subprocess.Popen(mpi_command(2, "-c", code + nap))
    deadline = time.monotonic() + 30.0
    while len(_sleepers(nap)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # until the ranks have asked to die
    assert len(_sleepers(nap)) == 2
    launcher.kill()
    launcher.wait()
    _, alive = psutil.wait_procs(_sleepers(nap), timeout=5.0)
    assert alive == []


def _sleepers(nap: str) -> list[psutil.Process]:
    """Return the ranks that sleep; the launcher has the code in its command line, too."""
    own = os.path.realpath(sys.executable)
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(nap in word for word in process.info["cmdline"] or ())
        and os.path.realpath(process.info["cmdline"][0]) == own
    ]


def test_the_command_that_starts_ranks_is_the_same_without_a_home():
    code = (
        "from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command\n"
        "print(launch_command(find_mpirun(), num_ranks=2))"
    )
    without = {name: value for name, value in os.environ.items() if name != "HOME"}
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout
        for env in ({**without, "HOME": "/tmp"}, without)
    ]
    assert said[0] == said[1]
    assert "mpirun" in said[0]
