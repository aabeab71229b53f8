"""Which links are slow, what a transport sends over them, and what rings of collectives would.

Slow links join ranks of different regions; where all ranks are in one region, all links count.
"""

from collections.abc import Iterable
from threading import Lock

import jax

from jaxpipe.autoshard.hlo import HloCollective, HloKind
from jaxpipe.autoshard.strategy import MeshShape
from jaxpipe.comm import HostOrDeviceArray, Receiving, Sending, Transport, library_of
from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.collective.library import SumsInLibrary
from jaxpipe.plan import Plan
from topo import Cluster


def regions_of(plan: Plan, cluster: Cluster) -> tuple[str, ...]:
    """Return the region of each rank."""
    return tuple(cluster.devices[plan.device(rank)].region for rank in range(plan.num_ranks))


def is_slow(regions: tuple[str, ...], source: int, to: int) -> bool:
    """Return whether the link between two ranks counts as slow.

    >>> is_slow(("ohio", "ohio", "virginia"), 0, 1), is_slow(("ohio", "ohio"), 0, 1)
    (False, True)
    """
    return source != to and (len(set(regions)) == 1 or regions[source] != regions[to])


class LinkCountedTransport:
    """Passes everything on, and counts what this rank sends to others; any thread may send.

    What MPI's own library sums is not counted.
    """

    def __init__(self, transport: Transport, regions: tuple[str, ...]):
        self._transport = transport
        self._regions = regions
        self._num_bytes_sent = self._num_bytes_slow = 0
        self._lock = Lock()

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return self._transport.num_ranks

    @property
    def num_bytes_sent(self) -> int:
        """The bytes that this rank has sent to others."""
        return self._num_bytes_sent

    @property
    def num_bytes_slow(self) -> int:
        """The bytes that it has sent over slow links."""
        return self._num_bytes_slow

    @property
    def library(self) -> SumsInLibrary | None:
        """What sums in the transport inside."""
        return library_of(self._transport)

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Count the bytes of `array`, and start to send it to the rank `to`."""
        num_bytes = num_bytes_of(array) if to != self.rank else 0
        with self._lock:
            self._num_bytes_sent += num_bytes
            self._num_bytes_slow += num_bytes if is_slow(self._regions, self.rank, to) else 0
        return self._transport.send(array, to=to, tag=tag)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`."""
        return self._transport.receive(like, source=source, tag=tag)

    def close(self, *, error: BaseException | None = None) -> None:
        """End this rank's part."""
        self._transport.close(error=error)


def sent_in_rings(
    collectives: Iterable[HloCollective], mesh: MeshShape, regions: tuple[str, ...], *, rank: int
) -> tuple[float, float]:
    """Return the bytes that a rank sends in all, and over slow links, if collectives are rings.

    In a ring of p ranks each sends to the next: 2 (p - 1) / p of the bytes of an all-reduce, and
    (p - 1) / p of those of other collectives. Where the two axes of the mesh are equally long, a
    group of that size is taken as one along dp, whose neighbours are farther apart.

    >>> found = HloCollective(kind=HloKind.ALL_REDUCE, num_bytes=100, group=2, dtypes=("f32",))
    >>> sent_in_rings([found], MeshShape(dp=2, op=1), ("ohio", "virginia"), rank=0)
    (100.0, 100.0)
    """
    sent = slow = 0.0
    for each in collectives:
        ring = _ring(mesh, each.group or mesh.num_devices, rank)
        following = ring[(ring.index(rank) + 1) % len(ring)]
        rounds = (2 if each.kind is HloKind.ALL_REDUCE else 1) * (len(ring) - 1)
        num_bytes = rounds * each.num_bytes / len(ring)
        sent += num_bytes
        slow += num_bytes if is_slow(regions, rank, following) else 0.0
    return sent, slow


def _ring(mesh: MeshShape, size: int, rank: int) -> list[int]:
    """Return the group of this size that a rank belongs to, in the order of its ring."""
    if size == mesh.num_devices:
        return list(range(mesh.num_devices))
    if size == mesh.dp:
        return list(range(rank % mesh.op, mesh.num_devices, mesh.op))
    if size == mesh.op:
        first = rank - rank % mesh.op
        return list(range(first, first + mesh.op))
    return [rank]
