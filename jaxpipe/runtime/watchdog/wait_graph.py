"""Whom a rank waits for in each of its instructions."""

from collections.abc import Callable

from jaxpipe.plan import Plan
from jaxpipe.schedule import Bucket, Instruction, Op


def waits_for(
    plan: Plan, *, rank: int, shares_updates: bool = False
) -> Callable[[Instruction], tuple[int, ...]]:
    """Return the function that tells which ranks an instruction of this rank waits for.

    A message is waited for where it is received, a sum at the last reduction of a step, that of
    `Bucket.SCALARS`, and the other replicas in an update that they share; all else is the rank's
    own work.

    >>> from jaxpipe.plan import PlanConfig, default_plan
    >>> from jaxpipe.schedule import forward, receive, update
    >>> import topo
    >>> config = PlanConfig(cluster="two-region", stages=2, replicas=2)
    >>> plan = default_plan(config, topo.load("two-region"), num_layers=4, batch=4, tied=False)
    >>> of_rank_3 = waits_for(plan, rank=3, shares_updates=True)
    >>> of_rank_3(receive(1, 0, 0)), of_rank_3(forward(1, 0)), of_rank_3(update(1))
    ((2,), (), (1,))
    """
    others = tuple(other for other in range(plan.num_ranks) if other != rank)
    mine = plan.replica(rank)

    def ranks(instruction: Instruction) -> tuple[int, ...]:
        if instruction.op is Op.RECEIVE and instruction.peer is not None:
            return (plan.rank(replica=mine, stage=instruction.peer),)
        if instruction.op is Op.UPDATE and shares_updates:
            stage = instruction.stage
            replicas = (r for r in range(plan.num_replicas) if r != mine)
            return tuple(plan.rank(replica=replica, stage=stage) for replica in replicas)
        return others if instruction.bucket is Bucket.SCALARS else ()

    return ranks
