"""Sees from outside on which hosts the ranks of MPI jobs run; MPI may silently choose others.

A rank is a process with the emulation's mark whose environment tells its rank, as both MPIs do. Its
network namespace tells its host.
"""

import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxpipe.topo.emulate.mpi import MARK
from jaxpipe.topo.emulate.owner import NAMESPACES, Owner

_RANKS = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")
_PERIOD_S = 0.2
_LOOKS = 10


class RankWatch:
    """A thread that looks for ranks until it is left; short-lived ones may escape it."""

    def __init__(self, owner: Owner, num_hosts: int, expected: Sequence[int]) -> None:
        """Know the hosts' namespaces, and for each rank the host where it belongs."""
        self._mark = f"{MARK}={owner.name}".encode()
        self._host = {
            (NAMESPACES / owner.namespace(host)).stat().st_ino: host for host in range(num_hosts)
        }
        self._expected = expected
        self._settled = _processes()  # none of these is a rank of ours
        self._unmarked: Counter[int] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self.seen: dict[int, int | None] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def astray(self) -> dict[int, int | None]:
        """The ranks that were seen on another host than theirs, or on none."""
        return {
            rank: host
            # A copy: the thread adds ranks meanwhile.
            for rank, host in dict(self.seen).items()
            if rank >= len(self._expected) or host != self._expected[rank]
        }

    def _run(self) -> None:
        while True:
            # At least once, also for a job that ended at once.
            self.look()
            if self._over.wait(_PERIOD_S):
                return

    def look(self) -> None:
        """Look once at all processes that are not known yet."""
        alive = _processes()
        # Ids of ended processes may come again.
        self._settled &= alive
        for pid in alive - self._settled:
            with suppress(OSError):
                self._look_at(pid)

    def _look_at(self, pid: int) -> None:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if self._mark not in words:
            self._unmarked[pid] += 1  # it may still run another program, with another environment
            if self._unmarked[pid] > _LOOKS:
                self._settled.add(pid)
            return
        rank = next((int(w.partition(b"=")[2]) for w in words if w.startswith(_RANKS)), None)
        if rank is None:
            return  # it may still become one: a daemon's child, before it runs its program
        inode = int(os.readlink(f"/proc/{pid}/ns/net").removeprefix("net:[").removesuffix("]"))
        host = self._host.get(inode)
        # A rank that was seen astray stays: a restart elsewhere does not excuse it.
        if rank not in self.astray:
            self.seen[rank] = host
        self._settled.add(pid)


def _processes() -> set[int]:
    return {int(path.name) for path in Path("/proc").glob("[0-9]*")}
