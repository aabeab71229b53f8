"""Sync trees of a plan, and those from the islands of the network: hosts inside regions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jaxpipe.collective import SyncTree
from jaxpipe.plan.plan import Plan
from jaxpipe.topo import Device


def with_trees(
    plan: Plan,
    *,
    segment: Callable[[int, Sequence[int]], SyncTree],
    shared: Callable[[Sequence[int]], SyncTree],
    every: Callable[[Sequence[int]], SyncTree],
) -> Plan:
    """Return the plan with sync trees over the ranks of its buckets.

    `segment` returns the tree of a segment, given its number and its holders, `shared` that of a
    tied embedding, `every` that of all ranks.
    """
    return replace(
        plan,
        sync=tuple(segment(n, plan.holders(n)) for n in range(len(plan.segments))),
        sync_shared=shared(plan.embedding_holders()),
        sync_all=every(range(plan.num_ranks)),
    )


def with_island_trees(plan: Plan, devices: Sequence[Device]) -> Plan:
    """Return the plan with trees that follow islands; `devices` are those of its cluster."""

    def tree(ranks: Sequence[int]) -> SyncTree:
        return island_tree({rank: devices[plan.device(rank)] for rank in ranks})

    return with_trees(plan, segment=lambda _, ranks: tree(ranks), shared=tree, every=tree)


def island_tree(devices: Mapping[int, Device]) -> SyncTree:
    """Return the tree that reduces inside hosts first, then inside regions, then across.

    `devices` maps ranks to devices, in the order of the tree. An island of one member is that
    member.

    >>> ohio = {rank: Device(name="", host=f"ohio-{rank}", region="ohio") for rank in (0, 1)}
    >>> island_tree({**ohio, 2: Device(name="", host="tokyo-0", region="tokyo")})
    ((0, 1), 2)
    """
    regions = _islands(devices, lambda device: device.region)
    return _tree(
        [
            _tree([_tree(tuple(host)) for host in _islands(region, lambda device: device.host)])
            for region in regions
        ]
    )


def _islands(
    devices: Mapping[int, Device], name: Callable[[Device], str]
) -> list[dict[int, Device]]:
    # A dict keeps the order of insertion: the first rank of an island is its leader.
    islands: dict[str, dict[int, Device]] = {}
    for rank, device in devices.items():
        islands.setdefault(name(device), {})[rank] = device
    return list(islands.values())


def _tree(members: Sequence[SyncTree]) -> SyncTree:
    return members[0] if len(members) == 1 else tuple(members)
