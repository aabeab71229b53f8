"""The islands of an outer loop: consecutive replicas that train in step with each other.

::

    replicas      0   1 | 2   3         two islands of two replicas
    ranks       0 1 2 3 | 4 5 6 7       of two stages each
    outer steps  ranks 0 and 4, 1 and 5, 2 and 6, 3 and 7

The plan of an island is that of its replicas alone: with its own share of the batch, and with the
whole plan's sync trees as far as they are inside of it.
"""

from dataclasses import dataclass

from jaxpipe.collective.sync_tree import relabelled, restricted
from jaxpipe.errors import PlanError
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import with_trees


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """An island by its number: its plan, and its `ranks` and `replicas` in the whole plan.

    `share` is its part of the batch of all islands. `counterparts[n]` are the ranks at the same
    place as its n-th rank, one on each island, in their order.
    """

    number: int
    plan: Plan
    ranks: range
    replicas: range
    share: float
    counterparts: tuple[tuple[int, ...], ...]


def island_of(plan: Plan, *, rank: int, num_islands: int) -> Island:
    """Return the island of a rank; `check_islands` has accepted the plan."""
    per_island = plan.num_replicas // num_islands
    number = plan.replica(rank) // per_island
    firsts = (*plan.first_ranks[::per_island], plan.num_ranks)
    ranks = range(firsts[number], firsts[number + 1])
    replicas = range(number * per_island, (number + 1) * per_island)
    part = plan if num_islands == 1 else _plan_of(plan, replicas, ranks)
    return Island(
        number=number,
        plan=part,
        ranks=ranks,
        replicas=replicas,
        share=part.batch / plan.batch,
        counterparts=tuple(
            tuple(first + n for first in firsts[:-1]) for n in range(part.num_ranks)
        ),
    )


def islands_of(plan: Plan, *, num_islands: int) -> tuple[Island, ...]:
    """Return the islands of a plan that `check_islands` has accepted, by their number."""
    firsts = plan.first_ranks[:: plan.num_replicas // num_islands]
    return tuple(island_of(plan, rank=rank, num_islands=num_islands) for rank in firsts)


def fitting_islands(num_replicas: int, *, per_island: int) -> int:
    """Return the fewest islands of equal size that have no more replicas each than `per_island`.

    Links between islands are slow: rather more of them than sums across such links in every step.

    >>> [fitting_islands(replicas, per_island=2) for replicas in (8, 6, 5, 1)]
    [4, 3, 5, 1]
    """
    return min(
        n
        for n in range(1, num_replicas + 1)
        if num_replicas % n == 0 and num_replicas // n <= per_island
    )


def check_islands(plan: Plan, *, num_islands: int) -> None:
    """Check that a plan has islands that can exchange outer gradients.

    Raises:
        PlanError: the islands do not divide the replicas, or replicas have different partitions.
    """
    if plan.num_replicas % num_islands:
        raise PlanError(
            f"`outer.islands` ({num_islands}) must divide the replicas of the plan "
            f"({plan.num_replicas}); change one of them"
        )
    if not plan.has_equal_cuts:
        raise PlanError(
            f"`outer.islands` ({num_islands}) needs replicas of one partition, since islands "
            "exchange the same stages; use one `plan.cut` for all"
        )


def _plan_of(plan: Plan, replicas: range, ranks: range) -> Plan:
    labels = {rank: rank - ranks.start for rank in ranks}
    part = Plan(
        pipelines=plan.pipelines[replicas.start : replicas.stop],
        schedule=plan.schedule,
        tied=plan.tied,
        num_chunks=plan.num_chunks,
        all_reduce=plan.all_reduce,
    )
    return with_trees(
        part,
        segment=lambda number, _: relabelled(restricted(plan.sync[number], ranks), labels),
        shared=lambda _: relabelled(restricted(plan.sync_shared, ranks), labels),
        every=lambda _: relabelled(restricted(plan.sync_all, ranks), labels),
    )
