"""A disk for each emulated host: folders whose content no other host sees.

::

    /scratch on host 0   ═══ mounted from ═══   /run/jaxpipe-4711-88123/disks/0/scratch
    /scratch on host 1   ═══ mounted from ═══   /run/jaxpipe-4711-88123/disks/1/scratch

What is on a disk stays until the emulation ends, also when all processes of its host have ended.
Source: ip-netns(8): `ip netns exec` gives the command a mount namespace of its own.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from jaxpipe.topo.emulate.owner import Owner

MOUNTS = "mounts"
"""The shell commands with which a process on a host begins; `$number` is that of the host."""


def give_disks(owner: Owner, num_hosts: int, paths: Sequence[Path]) -> None:
    """Give each host its own content of these folders, from the next `mpirun` on.

    Raises:
        ValueError: a path is not absolute, or no folder.
    """
    lines: list[str] = []
    for path in paths:
        if not path.is_absolute() or not path.is_dir():
            raise ValueError(f"`--own-disk` must be a folder with its full path, is {str(path)!r}")
        for number in range(num_hosts):
            disk_of(owner, number, path).mkdir(parents=True, exist_ok=True)
        disks, inside = shlex.quote(str(owner.folder / "disks")), str(path).lstrip("/")
        source = f'{disks}/"$number"/{shlex.quote(inside)}'
        lines.append(f"mount --bind {source} {shlex.quote(str(path))} || exit 1")
    (owner.folder / MOUNTS).write_text("".join(f"{line}\n" for line in lines))


def disk_of(owner: Owner, number: int, path: Path) -> Path:
    """Return where the machine sees a folder of a host.

    >>> disk_of(Owner(pid=4711, started=88123), 1, Path("/scratch")).as_posix()
    '/run/jaxpipe-4711-88123/disks/1/scratch'
    """
    return owner.folder / "disks" / str(number) / str(path).lstrip("/")
