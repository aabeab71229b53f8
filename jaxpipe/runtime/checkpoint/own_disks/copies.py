"""Who keeps a copy of whose shards: a rank on another disk, best of all one with the same layers.

::

                  disk A    disk B    disk C    disk D
    replica 0     stage 0   stage 1                       rank 0 ──► rank 2, rank 1 ──► rank 3
    replica 1                         stage 0   stage 1   rank 2 ──► rank 0, rank 3 ──► rank 1
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from jaxpipe.plan import Plan
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The disks of a run, and the copies between them: pairs of a rank and of its keeper.

    The pairs are in the order in which all ranks move them (`in_rounds`).
    """

    disks: Disks
    pairs: tuple[tuple[int, int], ...]


def copies_of(plan: Plan, disks: Disks) -> Copies:
    """Return the keeper of each rank's shards; there are none if all share a disk.

    A keeper shares no disk with the rank, and no host if there is another host. Of those, it has
    the most layers in common, keeps the fewest copies, and is the next by its number.

    >>> from jaxpipe.plan import PlanConfig, default_plan
    >>> from jaxpipe import topo
    >>> from jaxpipe.schedule import ScheduleKind
    >>> config = PlanConfig(
    ...     cluster="two-region",
    ...     stages=2,
    ...     replicas=2,
    ...     microbatch=1,
    ...     schedule=ScheduleKind.ONE_F_ONE_B,
    ... )
    >>> plan = default_plan(config, topo.load("two-region"), num_layers=4, batch=4, tied=False)
    >>> apart = Disks(leader_of=(0, 1, 2, 3), hosts=("a", "b", "c", "d"))
    >>> copies_of(plan, apart).pairs
    ((0, 2), (1, 3), (2, 0), (3, 1))
    """
    kept: Counter[int] = Counter()
    pairs: list[tuple[int, int]] = []
    for rank in range(plan.num_ranks):
        own = _layers(plan, rank)

        def cost(other: int, rank: int = rank, own: frozenset[int] = own) -> tuple[int, ...]:
            is_same_host = disks.hosts[other] == disks.hosts[rank]
            in_common = len(own & _layers(plan, other))
            distance = (other - rank) % plan.num_ranks
            return int(is_same_host), -in_common, kept[other], distance

        mine = disks.leader_of[rank]
        others = [each for each in range(plan.num_ranks) if disks.leader_of[each] != mine]
        if others:
            keeper = min(others, key=cost)
            kept[keeper] += 1
            pairs.append((rank, keeper))
    return Copies(disks=disks, pairs=in_rounds(pairs))


def in_rounds(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return pairs of ranks in an order in which as many as possible move at the same time.

    A rank moves one pair at a time, in this order, so that no two ranks wait for each other.

    >>> in_rounds([(0, 1), (1, 2), (2, 3), (3, 0)])
    ((0, 1), (2, 3), (1, 2), (3, 0))
    """
    rounds: list[list[tuple[int, int]]] = []
    for pair in pairs:
        free = (each for each in rounds if not any(set(pair) & set(other) for other in each))
        chosen = next(free, None)
        if chosen is None:
            rounds.append(chosen := [])
        chosen.append(pair)
    return tuple(pair for each in rounds for pair in each)


def _layers(plan: Plan, rank: int) -> frozenset[int]:
    replica = plan.replica(rank)
    return frozenset(
        layer for stage in plan.stages(rank) for layer in plan.layers(stage, replica=replica)
    )
