"""Two runs on one machine: neither pins its ranks to the cores of the other."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxpipe.runtime.process import affinity, core_claims
from jaxpipe.runtime.process.affinity import local_rank, pin
from jaxpipe.runtime.process.core_claims import claim_cores, pinned_cores
from jaxpipe.topo.machine_limits import limited_cores, usable_cores

SHOW = """
import json, os, sys
from jaxpipe.runtime.process import core_claims
from jaxpipe.runtime.process.affinity import pin
core_claims.pinned_cores = set  # those of other programs on this machine come and go
pin(os.environ)
# In one write: the pipe is that of all ranks, and `print` may write the end of a line on its own.
line = json.dumps([sorted(os.sched_getaffinity(0)), os.environ.get("NPROC")]) + "\\n"
os.write(sys.stdout.fileno(), line.encode())
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


@contextmanager
def launched(size: int, folder: Path) -> Iterator[list[tuple[list[int], str | None]]]:
    """Launch ranks that pin themselves and wait; yield the cores and the threads of each."""
    environment = {k: v for k, v in os.environ.items() if k != "NPROC"}
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(size), SHOW],
        env={**environment, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = [json.loads(process.stdout.readline()) for _ in range(size)]
        yield sorted((cores, num_threads) for cores, num_threads in said)
        process.communicate("\n", timeout=60)


@pytest.fixture
def cores() -> list[int]:
    """Return the usable cores, where there are several and none is bound or limited by a quota."""
    if len(usable_cores()) < 2 or usable_cores() != limited_cores(allowed_cores(), has_quota=False):
        pytest.skip("this machine has one core, or a quota")
    return list(usable_cores())


def allowed_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_the_ranks_of_a_second_run_leave_the_cores_of_the_first_alone(
    tmp_path: Path, cores: list[int]
):
    size = len(cores)
    with launched(size, tmp_path) as first, launched(size, tmp_path) as second:
        assert first == [([core], None) for core in cores]
        # All ranks of the second run have all cores, and one thread each.
        assert second == [(allowed_cores(), "1")] * size
    with launched(size, tmp_path) as third:
        assert third == first


def test_two_runs_that_fit_have_cores_of_their_own(tmp_path: Path, cores: list[int]):
    with launched(1, tmp_path) as first, launched(1, tmp_path) as second:
        assert [*first, *second] == [([core], None) for core in cores[:2]]


def test_a_core_to_which_another_program_is_pinned_is_taken(cores: list[int]):
    nap = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
    launch = f"import subprocess; subprocess.run({nap!r})"
    with subprocess.Popen([sys.executable, "-c", launch], stdin=subprocess.PIPE) as other:
        os.sched_setaffinity(other.pid, {cores[1]})
        assert cores[1] in pinned_cores()
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


def test_a_rank_with_a_gpu_keeps_all_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(affinity, "num_jax_gpus", lambda _: 1)
    allowed: list[None] = []
    monkeypatch.setattr(affinity, "allow_arenas", lambda: allowed.append(None))
    before = os.sched_getaffinity(0)
    environment = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    pin(environment)
    assert os.sched_getaffinity(0) == before
    assert len(allowed) == 1
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
