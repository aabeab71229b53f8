"""The MPI transport passes the conformance suite, and its jobs end well or at once."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from jaxpipe.comm import Transport
from tests.comm.checks import CHECKS
from tests.helpers import mpi_command, mpi_environment

pytestmark = pytest.mark.mpi

REPOSITORY = Path(__file__).parents[3]
Outcomes = dict[int, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Job:
    exit_code: int
    stderr: str


def launch(num_ranks: int, *arguments: str) -> Job:
    """Run a job to its end; one that hangs is told to end, so that mpirun takes its ranks along."""
    command = mpi_command(num_ranks, *arguments)
    with subprocess.Popen(
        command, env=mpi_environment(), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, stderr = process.communicate(timeout=120.0)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return Job(process.returncode, stderr)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return what every check came to on each of four ranks, from one launch."""
    folder, ranks = tmp_path_factory.mktemp("conformance"), range(4)
    job = launch(len(ranks), "-m", "tests.programs.run_conformance", str(folder))
    reports = {
        rank: [json.loads(line) for line in (folder / f"{rank}.jsonl").read_text().splitlines()]
        for rank in ranks
    }
    outcomes = {
        rank: {entry["check"]: entry["outcome"] for entry in report}
        for rank, report in reports.items()
    }
    if all(outcome == "passed" for one in outcomes.values() for outcome in one.values()):
        assert job.stderr == ""
        assert job.exit_code == 0
        assert all((folder / f"{rank}.closed").exists() for rank in ranks)
    return outcomes


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(outcomes: Outcomes, check: Callable[[Transport], None]):
    said = {rank: checks.get(check.__name__, "never ran") for rank, checks in outcomes.items()}
    assert set(said.values()) == {"passed"}, "\n".join(
        f"rank {rank}: {outcome}" for rank, outcome in said.items()
    )


def processes_with(argument: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if argument in (process.info["cmdline"] or ())
    ]


@pytest.mark.parametrize(
    ("ending", "first_line"),
    [
        ("raise_on_rank_1", "rank 1: ValueError: stage 1 is too big"),
        ("compute_on_rank_0_while_rank_1_raises", "rank 1: ValueError: stage 1 is too big"),
        (
            "wait_for_what_never_comes",
            r"rank 1: DeadlineError: timed out .* waiting for 4 bytes from rank 0 to rank 1 "
            "with tag 7",
        ),
        (
            "stay_away_from_the_end",
            r"rank 1: DeadlineError: timed out .* waiting for 0 bytes from rank 0 to rank 1",
        ),
        (
            "stay_away_from_the_first_sum_in_the_library",
            r"rank 1: DeadlineError: timed out .* waiting for 0 bytes from rank 0 to rank 1",
        ),
        (
            "stay_away_from_the_second_sum_in_the_library",
            r"rank 1: DeadlineError: timed out .* waiting for the sum of 72 bytes over the "
            r"ranks \(0, 1\)",
        ),
    ],
    ids=lambda words: words.split()[0],
)
def test_an_error_ends_the_job_at_once(ending: str, first_line: str, tmp_path: Path):
    job = launch(2, "-m", "tests.programs.fail_on_purpose", ending, str(tmp_path))
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 5.0
    assert job.exit_code == 1
    assert re.match(first_line, job.stderr), job.stderr
    psutil.wait_procs(processes_with(str(tmp_path)), timeout=1.0)
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (
            "post_a_receive_too_many",
            "rank 1 never received 4 bytes from rank 0 to rank 1 with tag 3\n",
        ),
        ("leave_a_send_to_the_end", ""),
    ],
)
def test_a_job_ends_well(ending: str, words: str, tmp_path: Path):
    job = launch(2, "-m", "tests.programs.fail_on_purpose", ending, str(tmp_path))
    assert job.stderr == words
    assert job.exit_code == 0
    assert not (tmp_path / "failed").exists()
