"""Two runs on one machine: neither pins its ranks to the cores of the other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.runtime.process import affinity, core_claims
from jaxpipe.runtime.process.affinity import local_rank, pin
from jaxpipe.runtime.process.core_claims import claim_cores
from jaxpipe.topo.machine_limits import usable_cores

SHOW = """
import json, os, sys
from jaxpipe.runtime.process.affinity import pin
pin(os.environ)
print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ.get("NPROC")]), flush=True)
sys.stdin.readline()
"""
LAUNCH = """
import os, subprocess, sys
size = int(sys.argv[1])
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", sys.argv[2]],
        env={**os.environ, "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
             "OMPI_COMM_WORLD_LOCAL_SIZE": str(size)},
        stdin=subprocess.PIPE,
    )
    for rank in range(size)
]
sys.stdin.readline()
for rank in ranks:
    rank.communicate(b"\\n")
"""


class Launched:
    """A launcher with ranks that pin themselves, and wait."""

    def __init__(self, size: int, folder: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "NPROC"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(size), SHOW],
            env={**environment, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = [json.loads(self._process.stdout.readline()) for _ in range(size)]
        self.cores = sorted(cores for cores, _ in said)
        self.num_threads = {threads for _, threads in said}

    def end(self) -> None:
        """End the ranks, then the launcher."""
        self._process.communicate("\n", timeout=60)


def idle_cores() -> list[int]:
    """Return the usable cores to which nothing is pinned now."""
    return [core for core in usable_cores() if core not in core_claims.pinned_cores()]


@pytest.fixture
def free_machine() -> list[int]:
    """Return the usable cores, where none of them is taken and there are several."""
    cores = idle_cores()
    if len(cores) < 2 or len(cores) < len(usable_cores()):
        pytest.skip("other processes are pinned to the cores of this machine")
    return cores


def test_the_ranks_of_a_second_run_leave_the_cores_of_the_first_alone(
    tmp_path: Path, free_machine: list[int]
):
    size = len(free_machine)
    first, second = Launched(size, tmp_path), Launched(size, tmp_path)
    assert first.cores == [[core] for core in free_machine]
    assert first.num_threads == {None}
    # All ranks of the second run have all cores, and one thread each.
    assert second.cores == [sorted(os.sched_getaffinity(0))] * size
    assert second.num_threads == {"1"}
    first.end()
    second.end()
    third = Launched(size, tmp_path)
    assert third.cores == [[core] for core in free_machine]
    third.end()


def test_two_runs_that_fit_have_cores_of_their_own(tmp_path: Path, free_machine: list[int]):
    first, second = Launched(1, tmp_path), Launched(1, tmp_path)
    assert [first.cores, second.cores] == [[[core]] for core in free_machine[:2]]
    first.end()
    second.end()


def test_a_core_to_which_another_program_is_pinned_is_left_alone(
    tmp_path: Path, free_machine: list[int]
):
    nap = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
    other = subprocess.Popen(nap, stdin=subprocess.PIPE)
    os.sched_setaffinity(other.pid, {free_machine[0]})
    run = Launched(1, tmp_path)
    assert run.cores == [[free_machine[1]]]
    run.end()
    other.communicate(b"\n", timeout=60)


def test_all_ranks_of_a_job_get_the_same_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(core_claims, "pinned_cores", lambda: {1})
    assert claim_cores(2, (0, 1, 2, 3), folder=tmp_path) == [0, 2]
    monkeypatch.setattr(core_claims, "pinned_cores", lambda: {0, 1, 2, 3})
    assert claim_cores(2, (0, 1, 2, 3), folder=tmp_path) == [0, 2]


def test_a_damaged_file_of_claims_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(core_claims, "pinned_cores", set)
    file = tmp_path / f"jaxpipe-cores-{os.geteuid()}.json"
    for content in (b"", b"[" * 3000, b"\xff", b'{"x": [0], "12.-": [1], "": [2]}'):
        file.write_bytes(content)
        assert claim_cores(1, (0, 1), folder=tmp_path) == [0]
    assert list(json.loads(file.read_bytes()).values()) == [[0]]


def test_a_file_of_claims_that_leads_elsewhere_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(core_claims, "pinned_cores", set)
    target = tmp_path / "target"
    target.write_text("{}")
    (tmp_path / f"jaxpipe-cores-{os.geteuid()}.json").symlink_to(target)
    assert claim_cores(1, (0, 1), folder=tmp_path) == [0]
    assert target.read_text() == "{}"


@pytest.mark.parametrize(
    ("environment", "allowed", "of_parent", "expected"),
    [
        ({}, {0, 1}, {0, 1}, None),
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, {0, 1}, {0, 1}, {1}),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "3"}, {0, 1}, {0, 1}, None),
        # A cpuset is kept; a binding by the launcher, which has more cores itself, is too.
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, {3, 5}, {3, 5}, {5}),
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, {2, 3}, {0, 1, 2, 3}, None),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, {3}, {3}, None),
    ],
)
def test_a_rank_is_pinned_within_what_it_may_use(
    environment: dict[str, str],
    allowed: set[int],
    of_parent: set[int],
    expected: set[int] | None,
    monkeypatch: pytest.MonkeyPatch,
):
    pinned: list[set[int]] = []
    cores = tuple(sorted(allowed))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: of_parent if process else allowed)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: pinned.append(cores))
    monkeypatch.setattr(affinity, "usable_cores", lambda: cores)
    monkeypatch.setattr(affinity, "limited_cores", lambda *_, **__: cores)
    monkeypatch.setattr(affinity, "claim_cores", lambda size, cores: list(cores[:size]))
    pin(environment)
    assert pinned == ([] if expected is None else [expected])
    assert "NPROC" not in environment


def test_under_a_quota_ranks_are_not_pinned(monkeypatch: pytest.MonkeyPatch):
    environment = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(affinity, "usable_cores", lambda: (0,))
    pin(environment)
    assert environment["NPROC"] == "1"


def test_the_local_rank_is_that_of_the_launcher():
    assert local_rank({}) is None
    here = local_rank({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"})
    assert here == affinity.LocalRank(rank=2, num_ranks=3)
