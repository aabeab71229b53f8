"""From searched stages to a plan that the pipeline executes: a rank for each stage, on its submesh.

::

    stages     layers 0-1 on 2 devices   layer 2 on 1   layers 3-4 on 4        dp 1 x op 2, 1, 4
    plan       rank 0 on devices 0, 1    rank 1 on 2    rank 2 on 3, 4, 5, 6   sharing "tensor"
"""

from dataclasses import replace

from jaxpipe import topo
from jaxpipe.autoshard.inter_op import StagedModel
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, PlanConfig, Sharing, default_plan
from jaxpipe.topo import Cluster


def cluster_of(num_devices: int, *, host_devices: int) -> Cluster:
    """Return equal hosts with as many devices; the last one may have more than are used.

    >>> cluster_of(12, host_devices=8).name, len(cluster_of(3, host_devices=8))
    ('homogeneous:hosts=2,devices=8', 3)
    """
    each = min(num_devices, host_devices)
    return topo.load(f"homogeneous:hosts={-(-num_devices // each)},devices={each}")


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
        shapes: dp and op of each stage: one of them is 1 in all stages.
        microbatch: samples, over all devices of a stage.
        batch: samples of a step.
        cluster: whose devices are those of the submeshes, by their numbers.

    Raises:
        PlanError: some stages divide samples and others layers, or a stage does both.
    """
    if all(dp == 1 for dp, _ in shapes):
        sharing = Sharing.TENSOR
    elif all(op == 1 for _, op in shapes):
        sharing = Sharing.DATA
    else:
        raise PlanError(
            "ranks of a plan share their stages in one way: the stages have dp x op "
            f"{', '.join(f'{dp} x {op}' for dp, op in shapes)}; search with dp or op alone"
        )
    num_layers = sum(staged.cut)
    config = PlanConfig(cuts=(staged.cut,), microbatch=microbatch)
    plan = default_plan(config, cluster, num_layers=num_layers, batch=batch, tied=False)
    groups = tuple(tuple(stage.devices) for stage in staged.stages)
    return replace(plan.on_groups((groups,)), sharing=sharing)
