"""Which cores belong to which job of a machine, so that two runs do not pin ranks to the same ones.

::

    /tmp/jaxpipe-cores-<user>.json      {"4711.88123": [0, 1], "4923.90011": []}
                                          the parent of a job's ranks, and the cores of the job

The first rank of a job claims cores for all ranks of the job on this machine, under a lock; the
others read its claim. A claim ends with the parent of the ranks, which is their launcher's process.
Processes of other programs and users that are pinned to one core are left alone as well.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from jaxpipe.runtime.process.file_lock import lock_within
from jaxpipe.topo.machine_limits import siblings_of

logger = logging.getLogger(__name__)

_PATIENCE_S = 2.0
"""A claim takes milliseconds; a rank that is stopped during its own may not stop all others."""
_MOST_BYTES = 2**20
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in `include/linux/sched.h`: each core has threads of the kernel that are pinned."""
_FLAGS, _START = 6, 19
"""Positions in `/proc/PID/stat` after the name; `proc(5)` counts from 1, with the name as 2."""


def claim_cores(num_ranks: int, cores: Sequence[int], *, folder: Path | None = None) -> list[int]:
    """Return cores for the ranks of this rank's job, one each, or none where too few are free.

    All ranks of a job on this machine get the same answer. `folder` has the file of claims.
    """
    job = _job(os.getppid())
    with _claims(folder or Path(tempfile.gettempdir())) as claims:
        for other in [name for name in claims if not _is_alive(name)]:
            del claims[other]
        if job not in claims:
            taken = {core for of_job in claims.values() for core in of_job} | pinned_cores()
            free = [core for core in cores if not siblings_of(core) & taken]
            claims[job] = free[:num_ranks] if len(free) >= num_ranks else []
        return claims[job]


@contextmanager
def _claims(folder: Path) -> Iterator[dict[str, list[int]]]:
    """Read the claims, and write them after the body; without the file, there are none."""
    path = folder / f"jaxpipe-cores-{os.geteuid()}.json"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        logger.debug("cores are not claimed: %s", error)
        yield {}
        return
    with open(descriptor, "r+b") as file:
        if os.fstat(descriptor).st_uid != os.geteuid() or not lock_within(descriptor, _PATIENCE_S):
            yield {}
            return
        claims: dict[str, list[int]] = {}
        with suppress(ValueError, RecursionError):  # damaged: as if there were none
            claims = msgspec.json.decode(file.read(_MOST_BYTES), type=dict[str, list[int]])
        yield claims
        file.seek(0)
        file.write(msgspec.json.encode(claims))
        file.truncate()


def _job(parent: int) -> str:
    """Return a name for a process that no later process with its number has: with its start."""
    fields = _stat(Path(f"/proc/{parent}"))
    return f"{parent}.{fields[_START] if fields else '-'}"


def _is_alive(job: str) -> bool:
    """Return whether the launcher of a job still runs."""
    parent, _, start = job.partition(".")
    return parent.isdecimal() and start.isdecimal() and _job(int(parent)) == job


def pinned_cores() -> set[int]:
    """Return the cores to which processes of other jobs are pinned."""
    taken: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            affinity = os.sched_getaffinity(int(process.name))
            fields = _stat(process)
            is_kernel = not fields or int(fields[_FLAGS]) & _KERNEL_THREAD
            if len(affinity) == 1 and not is_kernel and int(fields[1]) != os.getppid():
                taken |= affinity
    return taken


def _stat(process: Path) -> list[str]:
    """Return the fields of a process after its name, which may hold anything; none if it ended."""
    with suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()
    return []
