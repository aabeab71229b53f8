"""Which ranks see the same run folder: those of one disk.

::

    one folder on all hosts         leader_of = (0, 0, 0, 0)
    a disk on each of two hosts     leader_of = (0, 0, 2, 2)     rank 2 leads the second disk
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """The disks of a run: `leader_of[rank]` is the lowest rank on the disk of a rank.

    `hosts` are the names of the hosts of all ranks. The leader of a disk makes its folders and
    commits on it.

    >>> disks = Disks(leader_of=(0, 0, 2), hosts=("a", "a", "b"))
    >>> disks.is_shared, disks.leaders, disks.leads(1)
    (False, (0, 2), False)
    """

    leader_of: tuple[int, ...]
    hosts: tuple[str, ...]

    @property
    def is_shared(self) -> bool:
        """Whether all ranks see one folder."""
        return len(set(self.leader_of)) == 1

    @property
    def leaders(self) -> tuple[int, ...]:
        """The rank that leads each disk, in order."""
        return tuple(sorted(set(self.leader_of)))

    def leads(self, rank: int) -> bool:
        """Return whether a rank leads its disk."""
        return self.leader_of[rank] == rank

    def among(self, ranks: Sequence[int]) -> "Disks":
        """Return the disks of some ranks, which are numbered from 0 in this order.

        >>> Disks(leader_of=(0, 1, 0, 1), hosts=("a", "b", "a", "b")).among((1, 2, 3)).leader_of
        (0, 1, 0)
        """
        leaders = [self.leader_of[rank] for rank in ranks]
        return Disks(
            leader_of=tuple(leaders.index(leader) for leader in leaders),
            hosts=tuple(self.hosts[rank] for rank in ranks),
        )
