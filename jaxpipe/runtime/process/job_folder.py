"""A folder for the shared memory and the sockets of an MPI job, which is removed with the job.

Open MPI removes its files at the end of a job, but not if its `mpirun` is killed: then segments in
`/dev/shm` and a folder `ompi.PID` stay until the machine restarts. Here they lie in one folder with
the name of the process that has started the job::

    /dev/shm/jaxpipe-4711-88123-job/         process 4711, which began at tick 88123
             sm_segment.HOST.0.f6e20001.0    messages of rank 0 to ranks of its host
             ompi.4712/                      sockets of mpirun, process 4712

Where that process was killed as well, the next job removes what it has left.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_SUFFIX = "-job"


@contextmanager
def job_folder(parent: Path = SHARED_MEMORY) -> Iterator[dict[str, str]]:
    """Make a folder for the block, and yield the environment that makes Open MPI use it.

    The environment is empty where there is no such memory, or the folder cannot be made.
    """
    from jaxpipe.topo.emulate.owner import (
        this_process,  # it imports numpy, which `--help` can do without
    )

    remove_left_behind(parent)
    folder = parent / f"{this_process().name}{_SUFFIX}" if parent.is_dir() else None
    try:
        if folder is not None:
            # Another process cannot have taken the name: it would need this one's id.
            folder.mkdir(mode=0o700)
    except OSError:
        folder = None
    try:
        yield {} if folder is None else _environment(folder)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind(parent: Path = SHARED_MEMORY) -> None:
    """Remove the folders of jobs whose process has died, as far as they are this user's."""
    from jaxpipe.topo.emulate.owner import parse_owner

    for folder in parent.glob(f"jaxpipe-*{_SUFFIX}"):
        owner = parse_owner(folder.name)
        is_folder = folder.is_dir() and not folder.is_symlink()
        if owner is None or owner.is_alive() or not is_folder:
            continue
        # Everybody may write to `/dev/shm`: a folder of another user is not for us to remove.
        if folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    return {
        "OMPI_MCA_btl_sm_backing_directory": str(folder),
        "PRTE_MCA_prte_tmpdir_base": str(folder),
    }
