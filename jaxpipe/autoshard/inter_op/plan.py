"""From stages on submeshes to a plan that the pipeline runs: a rank for each stage."""

from jaxpipe.autoshard.inter_op.stages import Assignment
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, island_tree
from jaxpipe.schedule import ScheduleKind
from topo import Cluster


def plan_of(
    assignment: Assignment,
    cluster: Cluster,
    *,
    num_microbatches: int,
    microbatch: int = 1,
    tied: bool = False,
) -> Plan:
    """Return the plan of one pipeline whose rank s holds stage s, on the first of its devices.

    The stage's other devices belong to the rank too, as local devices over which it splits the
    stage; `Stage.devices` has them all.

    Raises:
        PlanError: the cluster has fewer devices.
    """
    stages = assignment.stages
    if stages[-1].devices.stop > len(cluster):
        raise PlanError(
            f"each stage needs its devices: the stages use {stages[-1].devices.stop}, cluster "
            f"{cluster.name!r} has {len(cluster)} devices; take the cluster they are for"
        )
    placement = tuple(stage.devices[0] for stage in stages)
    ranks = {rank: cluster.devices[device] for rank, device in enumerate(placement)}
    ends = {0, len(stages) - 1}
    return Plan(
        placement=(placement,),
        cut=tuple(len(stage.layers) for stage in stages),
        schedule=ScheduleKind.ONE_F_ONE_B,
        warmup=None,
        microbatch=microbatch,
        num_microbatches=num_microbatches,
        tied=tied,
        sync=tuple(range(len(stages))),
        sync_shared=island_tree({rank: ranks[rank] for rank in sorted(ends)}),
        sync_all=island_tree(ranks),
    )
