"""The section `mesh`; the mesh of a rank is that of its group of devices, or the configured one."""

from dataclasses import dataclass
from typing import Annotated

from jaxpipe.plan import Plan, Sharing
from jaxpipe.ranges import Range, check_ranges

_AT_LEAST_1 = Range(least=1, most=2**16, why="no host has more devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """How the local devices of each rank share its stages.

    A rank uses the first `data` x `context` x `tensor` of the devices that it sees. A token
    embedding is replicated if `tensor` does not divide its rows.
    """

    data: Annotated[int, _AT_LEAST_1] = 1
    """Parts of each microbatch, one per device of the axis; must divide the microbatch."""
    context: Annotated[int, _AT_LEAST_1] = 1
    """Parts of each sequence, one per device of the axis (context parallelism, ring attention);
    twice as many must divide the sequence."""
    tensor: Annotated[int, _AT_LEAST_1] = 1
    """Parts of each layer, one per device of the axis (tensor parallelism); must divide the
    attention heads."""
    sharded: bool = False
    """Shard parameters, gradients and moments over `data` and `context` as well (ZeRO-3, FSDP)."""
    sequence_parallel: bool = False
    """Between attention and MLP, where tensor parallelism has nothing to divide, divide sequences
    over `tensor` as well; it must divide them."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.sharded and self.data * self.context == 1:
            raise ValueError(
                "`sharded` splits parameters over the axes `data` and `context`, which are 1; "
                "raise one, or set `sharded` to false"
            )
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError(
                "`sequence_parallel` divides sequences over the axis `tensor`, which is 1; raise "
                "it, or set `sequence_parallel` to false"
            )

    @property
    def num_devices(self) -> int:
        """The number of devices of a rank."""
        return self.data * self.context * self.tensor

    @property
    def words(self) -> str:
        """The axes and their sizes, for messages."""
        return (
            "`mesh.data` x `mesh.context` x `mesh.tensor` = "
            f"{self.data} x {self.context} x {self.tensor}"
        )


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
