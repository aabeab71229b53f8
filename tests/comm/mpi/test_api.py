"""What surrounds MPI's own calls: the names of shared memory, and the deadline of its end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.comm.mpi.api import ended_within, unlink_shared_memory

LINE = "7f00-7f01 rw-s 00000000 00:1a 77  {path}\n"


@pytest.fixture
def names() -> list[Path]:
    return [Path("/dev/shm") / name for name in ("mpich_shm_0test_0", "other_shm_0test_0")]


def test_only_names_of_mpich_go(tmp_path: Path, names: list[Path]) -> None:
    maps = tmp_path / "maps"
    maps.write_text("".join(LINE.format(path=path) for path in names) + "7f00-7f01 r--p 0 0 0\n")
    try:
        for path in names:
            path.touch()
        unlink_shared_memory(maps)
        unlink_shared_memory(maps)
        assert [path.exists() for path in names] == [False, True]
    finally:
        for path in names:
            path.unlink(missing_ok=True)


def test_systems_without_maps_are_left_alone(tmp_path: Path) -> None:
    unlink_shared_memory(tmp_path / "none")


HANGS = """
import ctypes
from jaxpipe.comm.mpi.api import ended_within
with ended_within(0.5):
    ctypes.PyDLL(None).sleep(60)  # holds the interpreter, as a call of MPI may
"""


def test_an_end_of_mpi_that_hangs_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], check=False, timeout=300)
    assert ended.returncode == -signal.SIGALRM


def test_an_end_of_mpi_in_time_leaves_no_alarm() -> None:
    with ended_within(60.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
