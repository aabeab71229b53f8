"""The mesh of a rank: that of its group of devices in the plan, or the configured one."""

from jaxpipe.plan import Plan, Sharing
from jaxpipe.runtime.config import MeshConfig


def rank_mesh(plan: Plan, mesh: MeshConfig, *, rank: int) -> MeshConfig:
    """Return the mesh of a rank; `mesh` is the configured one, for plans of single devices."""
    if not plan.has_groups:
        return mesh
    degree = len(plan.group(rank))
    if plan.sharing is Sharing.ZERO3:
        return MeshConfig(data=degree, sharded=degree > 1)
    if plan.sharing is Sharing.DATA:
        return MeshConfig(data=degree)
    tensor = plan.pipeline(rank).tensor_parts[plan.number(rank)]
    in_parts = plan.sharing is Sharing.SEQUENCE and tensor > 1
    return MeshConfig(data=degree // tensor, tensor=tensor, sequence_parallel=in_parts)


def first_device(plan: Plan, mesh: MeshConfig, *, rank: int, num_devices: int) -> int:
    """Return the first of the devices of its process that a rank takes.

    It is 0, unless they suffice for the groups of all ranks: those are the threads of one process,
    or processes that all see the devices of their host. Then each rank has its own.
    """
    if not plan.has_groups:
        return 0
    sizes = [rank_mesh(plan, mesh, rank=rank).num_devices for rank in range(plan.num_ranks)]
    return sum(sizes[:rank]) if sum(sizes) <= num_devices else 0
