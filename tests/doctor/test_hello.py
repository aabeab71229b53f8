"""What `mpirun` prints of its own neither hides the ranks' answer nor ends the doctor."""

from pathlib import Path

import msgspec
import pytest

from jaxpipe.doctor import Health, hello
from jaxpipe.doctor.facts import RankFacts
from jaxpipe.doctor.hello import say_hello

FACTS = msgspec.json.encode(
    [
        RankFacts(
            rank=rank,
            num_ranks=2,
            host="here",
            cores=(rank,),
            versions={"python": "3.11", "jax": "0.10.2"},
            devices=("cpu",),
            latency_s=1e-6 if rank else None,
            bytes_per_s=1e10 if rank else None,
        )
        for rank in range(2)
    ]
).decode()


@pytest.fixture
def mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the `mpirun` that the doctor finds."""
    monkeypatch.setattr(hello, "find_mpirun", lambda: str(tmp_path / "mpirun"))
    return tmp_path / "mpirun"


def write_script(path: Path, *lines: str) -> None:
    version = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0"; exit; fi'
    path.write_text("\n".join(["#!/bin/sh", version, *lines, ""]))
    path.chmod(0o755)


@pytest.mark.parametrize(
    "before",
    [
        "echo Welcome to the cluster",
        "echo '[1, 2]'",
        "printf 'a\\000\\377b\\n'",
        "echo '{'; echo",
        ":",
    ],
)
def test_lines_around_the_answer_are_passed_over(mpirun: Path, before: str) -> None:
    write_script(mpirun, before, f"echo '{FACTS}'", "echo Goodbye")
    findings = say_hello(timeout_s=30)
    assert findings[0].message == f"{mpirun} starts ranks"
    assert [each.health for each in findings[:2]] == [Health.OK, Health.OK]
    assert findings[1].message == "2 ranks found each other"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo Welcome to the cluster", "no rank has reported: it printed 'Welcome to the cl"),
        (":", "no rank has reported: it printed nothing"),
        ("echo '[]x'", "no rank has reported"),
        ("echo no such partition >&2; exit 3", "ended with exit code 3: no such partition"),
    ],
)
def test_an_mpirun_without_an_answer_is_a_finding(mpirun: Path, line: str, words: str) -> None:
    write_script(mpirun, line)
    (finding,) = say_hello(timeout_s=30)
    assert finding.health is Health.BROKEN
    assert words in finding.message
    assert finding.fix


def test_ranks_that_do_not_answer_are_killed(mpirun: Path) -> None:
    # `setsid`: out of reach of the kill, and it holds the pipe.
    write_script(mpirun, "setsid sleep 8 &", "sleep 600")
    (finding,) = say_hello(timeout_s=0.5)
    assert "did not answer within 0.5 s" in finding.message
