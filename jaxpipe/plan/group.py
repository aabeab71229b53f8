"""Groups: the devices of one host that hold the stages of one rank together.

::

    tensor    each device has a part of every layer, and all of them compute every sample
    zero3     each device has a part of every parameter, gradient and moment; before it computes its
              own samples of a microbatch, it gathers whole layers from the others
    data      each device has all parameters, and computes its own samples of a microbatch, whose
              gradients are all-reduced

A rank may divide the samples of a microbatch first, into `data_parts`; then the devices of a part
share its stages like this, and a part's gradients are added to those of the others.

One device of a group sends and receives the messages of its rank, whole activations and gradients,
so ranks of unlike groups exchange them as if each had one device.

Source: Shoeybi et al., "Megatron-LM", 2019, section 3; Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", SC 2020, section 5.
"""

from enum import StrEnum

from jaxpipe.errors import PlanError
from jaxpipe.topo import Cluster


class Sharing(StrEnum):
    """How the devices of a rank share its stages."""

    TENSOR = "tensor"
    """Tensor parallelism: parts of each layer."""
    SEQUENCE = "sequence"
    """Tensor parallelism, and between its products parts of each sequence."""
    ZERO3 = "zero3"
    """Fully sharded data parallelism: parts of each parameter, and of each microbatch."""
    DATA = "data"
    """Data parallelism: parts of each microbatch, and every parameter on each device."""


def check_hosts(groups: tuple[tuple[int, ...], ...], cluster: Cluster) -> None:
    """Check that the devices of each rank are on one host; `groups` are in the order of ranks.

    Raises:
        PlanError: they are not.
    """
    for rank, group in enumerate(groups):
        hosts = dict.fromkeys(cluster.devices[device].host for device in group)
        if len(hosts) > 1:
            raise PlanError(
                f"`placement` has {list(group)} for rank {rank}, which are on {', '.join(hosts)} "
                f"of cluster {cluster.name!r}: a rank has devices of one host; take fewer devices "
                "for it, or more of one host"
            )
