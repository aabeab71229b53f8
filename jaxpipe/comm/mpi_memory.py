"""Shared memory without a name: nothing of it stays when the ranks of a host are killed.

MPICH maps a file in `/dev/shm` into all ranks of a host when MPI begins, and removes it when MPI
ends. Of ranks that are killed it stays, some MiB each time, until somebody removes it. Once all
ranks have mapped it, its name serves nobody, and MPICH does not mind that it is gone. (Open MPI's
launcher removes the files of its ranks, however these end.)
"""

import re
from contextlib import suppress
from pathlib import Path

_MAPPED = re.compile(r"(/dev/shm/mpich_shm_\w+)$", flags=re.MULTILINE)


def forget_names(maps: Path = Path("/proc/self/maps")) -> None:
    """Remove the names of what MPICH has mapped into this process, once all ranks have it.

    Any rank may, and each rank of a host may at the same time. Systems without `maps` are left as
    they are.
    """
    with suppress(OSError):
        for path in set(_MAPPED.findall(maps.read_text())):
            Path(path).unlink(missing_ok=True)
