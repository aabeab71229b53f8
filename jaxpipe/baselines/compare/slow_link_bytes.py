"""Bytes over slow links: sent in messages, or by the rings of collectives.

Slow links connect ranks of different regions; if all ranks are in one region, all links count.
"""

from collections.abc import Iterable, Mapping

from jaxpipe.baselines.autoshard.hlo import HloCollective
from jaxpipe.baselines.autoshard.strategy import MeshShape
from jaxpipe.plan import Plan
from jaxpipe.topo import Cluster


def regions_of(plan: Plan, cluster: Cluster) -> tuple[str, ...]:
    """Return the region of each rank."""
    return tuple(cluster.devices[plan.device(rank)].region for rank in range(plan.num_ranks))


def is_slow(regions: tuple[str, ...], source: int, to: int) -> bool:
    """Return whether the link between two ranks counts as slow.

    >>> is_slow(("ohio", "ohio", "virginia"), 0, 1), is_slow(("ohio", "ohio"), 0, 1)
    (False, True)
    """
    return source != to and (len(set(regions)) == 1 or regions[source] != regions[to])


def sent_in_messages(
    num_bytes_to: Mapping[int, int], regions: tuple[str, ...], *, rank: int
) -> tuple[int, int]:
    """Return the bytes that a rank has sent to others, in all and over slow links.

    >>> sent_in_messages({0: 9, 1: 2, 2: 3}, ("ohio", "ohio", "virginia"), rank=0)
    (5, 3)
    """
    sent = {to: num_bytes for to, num_bytes in num_bytes_to.items() if to != rank}
    slow = (num_bytes for to, num_bytes in sent.items() if is_slow(regions, rank, to))
    return sum(sent.values()), sum(slow)


def sent_in_rings(
    collectives: Iterable[HloCollective], mesh: MeshShape, regions: tuple[str, ...], *, rank: int
) -> tuple[float, float]:
    """Return the bytes that a rank sends, in all and over slow links, if collectives are rings.

    In a ring each rank sends to the next. If both axes of the mesh have the same size, a group of
    that size is assumed to be along dp, whose neighbours are farther apart.

    >>> from jaxpipe.baselines.autoshard.hlo import HloKind
    >>> found = HloCollective(kind=HloKind.ALL_REDUCE, num_bytes=100, group=2, dtypes=("f32",))
    >>> sent_in_rings([found], MeshShape(dp=2, op=1), ("ohio", "virginia"), rank=0)
    (100.0, 100.0)
    """
    sent = slow = 0.0
    for collective in collectives:
        ring = _ring(mesh, collective.group or mesh.num_devices, rank)
        following = ring[(ring.index(rank) + 1) % len(ring)]
        num_bytes = collective.ring_bytes(mesh.num_devices)
        sent += num_bytes
        slow += num_bytes if is_slow(regions, rank, following) else 0.0
    return sent, slow


def _ring(mesh: MeshShape, size: int, rank: int) -> list[int]:
    """Return the group of this size to which a rank belongs, in the order of its ring."""
    if size == mesh.num_devices:
        return list(range(mesh.num_devices))
    if size == mesh.dp:
        # dp is the outer axis: its neighbours are `op` devices apart.
        return list(range(rank % mesh.op, mesh.num_devices, mesh.op))
    if size == mesh.op:
        first = rank - rank % mesh.op
        return list(range(first, first + mesh.op))
    return [rank]
