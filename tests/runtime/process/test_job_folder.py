"""What an MPI job puts into shared memory goes with it, whatever ends it."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from jaxpipe.runtime.process.job_folder import SHARED_MEMORY, job_folder, remove_left_behind
from jaxpipe.runtime.process.mpirun import launch
from jaxpipe.topo.emulate.owner import this_process


def test_it_is_there_for_the_block(tmp_path: Path):
    with job_folder(tmp_path) as environment:
        (folder,) = tmp_path.iterdir()
        assert set(environment.values()) == {str(folder)}
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "sm_segment.0").touch()
    assert list(tmp_path.iterdir()) == []


def test_without_shared_memory_there_is_none(tmp_path: Path):
    with job_folder(tmp_path / "none") as environment:
        assert environment == {}


def test_only_what_dead_processes_have_left_is_removed(tmp_path: Path):
    mine = this_process().name
    kept = [f"{mine}-job", "jaxpipe-1-0", "jaxpipe-x-0-job", "other-job"]
    for name in (*kept, f"jaxpipe-{os.getpid()}-0-job"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "segment").touch()
    (tmp_path / "jaxpipe-2-0-job").symlink_to(tmp_path / "other-job")
    remove_left_behind(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "jaxpipe-2-0-job"}
    assert (tmp_path / "other-job" / "segment").exists()


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a worker may have JAX's threads
def test_an_mpirun_that_is_killed_leaves_nothing():
    folder = SHARED_MEMORY / f"{this_process().name}-job"
    killed: list[int] = []

    def kill() -> None:
        if not killed and list(folder.glob("ompi.*")):
            (mpirun,) = psutil.Process().children()
            killed.append(mpirun.pid)
            os.kill(mpirun.pid, signal.SIGKILL)

    code = launch(
        ["-n", "1", "-r", "1", "import time; time.sleep(30)"],
        num_ranks=2,
        module="timeit",
        poll=kill,
    )
    assert code == -signal.SIGKILL
    assert not folder.exists()
    assert not list(Path("/tmp").glob(f"ompi.{killed[0]}"))
