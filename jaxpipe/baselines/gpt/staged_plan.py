"""From searched stages to a plan that the pipeline executes: a rank for each stage, on its submesh.

::

    stages   layers 0-1: dp 1 x op 2   layer 2: 1 x 1   layers 3-4: dp 2 x op 2
    plan     rank 0 on devices 0, 1    rank 1 on 2      rank 2 on 3 to 6, in two data parts of two
"""

from dataclasses import replace

from jaxpipe import topo
from jaxpipe.baselines.autoshard.inter_op import StagedModel
from jaxpipe.plan import Plan, PlanConfig, Sharing, default_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo import Cluster


def cluster_of(num_devices: int, *, host_devices: int) -> Cluster:
    """Return equal hosts with as many devices; the last one may have more than are used.

    >>> cluster_of(12, host_devices=8).name, len(cluster_of(3, host_devices=8))
    ('homogeneous:hosts=2,devices=8', 3)
    """
    devices_of_host = min(num_devices, host_devices)
    return topo.load(
        f"homogeneous:hosts={-(-num_devices // devices_of_host)},devices={devices_of_host}"
    )


def staged_plan(
    staged: StagedModel,
    shapes: tuple[tuple[int, int], ...],
    *,
    microbatch: int,
    batch: int,
    cluster: Cluster,
) -> Plan:
    """Return the plan of stages whose submeshes lie in hosts, under 1F1B.

    Args:
        staged: the stages.
        shapes: dp and op of each stage: op devices share layers, dp groups of them divide samples.
        microbatch: samples, over all devices of a stage.
        batch: samples of a step.
        cluster: whose devices are those of the submeshes, by their numbers.
    """
    num_layers = sum(staged.cut)
    config = PlanConfig(
        stages=len(staged.cut),
        replicas=1,
        cut=staged.cut,
        microbatch=microbatch,
        schedule=ScheduleKind.ONE_F_ONE_B,
    )
    plan = default_plan(config, cluster, num_layers=num_layers, batch=batch, tied=False)
    groups = tuple(tuple(stage.devices) for stage in staged.stages)
    plan = plan.on_groups((groups,))
    if all(op == 1 for _, op in shapes):
        return replace(plan, sharing=Sharing.DATA)
    return plan.of_each(data_parts=tuple(dp for dp, _ in shapes))
