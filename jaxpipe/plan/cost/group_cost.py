"""Seconds of a stage that several devices of a host share: less compute each, and their exchanges.

With T devices, n layers, activations of A bytes and parameters of P bytes, r(x) the seconds of a
ring all-reduce of x bytes between the T devices, half of it an all-gather or a reduce-scatter::

               compute    tensor                      zero3
    forward    1 / T      2 n r(A)                    r(P) / 2         gathers the parameters
    backward   1 / T      2 n r(A)                    r(P)             ... and scatters gradients
               with recomputation 2 n r(A) more       gathers once, since they are still there
    step                  r(P) / 2                    r(P) / 2         gathers the gradients to send

With data parallelism the backward all-reduces the gradients of its microbatch, r(P), and each
device updates all parameters.

With parts of each sequence between products, an all-reduce is a reduce-scatter and an all-gather,
which take as long; the backward gathers the inputs of products once more: n r(A) in addition.

Of d data parts each has T / d devices, which exchange activations of A / d bytes like this; the
backward all-reduces the gradients of a microbatch between the parts, P d / T bytes on each device.

The table of embeddings, split by rows, adds one r(A) to the forward of the first stage, the head
one to the backward of the last. Nothing overlaps.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021, section 3.2; Korthikanti et al. 2022, "Reducing Activation Recomputation in
Large Transformer Models", section 4.2.2; Rajbhandari et al., "ZeRO", SC 2020, section 7.
"""

from dataclasses import dataclass, replace

from jaxpipe.network.alpha_beta import links_between
from jaxpipe.plan.cost.collective_cost import ring_s
from jaxpipe.plan.cost.layer_profile import Part
from jaxpipe.plan.group import Sharing
from jaxpipe.topo import Cluster

_ALL_REDUCES = 2
"""Of a layer, in each direction: after attention and after the MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStage:
    """A stage that the devices of a group share: its layers, and the bytes that they exchange.

    `is_first` says that it has the embedding, `is_last` the head, `recomputes` that a backward
    computes the forward again. Its devices divide samples into `data_parts`, those of a part the
    rest; devices of a part follow each other in `group`.
    """

    group: tuple[int, ...]
    num_layers: int
    activation_bytes: float
    gradient_bytes: float
    is_first: bool = False
    is_last: bool = False
    recomputes: bool = False
    data_parts: int = 1


def shared_part(part: Part, stage: SharedStage, sharing: Sharing, cluster: Cluster) -> Part:
    """Return the costs of a stage on a group, from those on its slowest device alone.

    >>> from jaxpipe import topo
    >>> stage = SharedStage(
    ...     group=(0, 1), num_layers=1, activation_bytes=8e9, gradient_bytes=0.0
    ... )
    >>> whole = Part(forward_s=4.0, backward_s=8.0)
    >>> part = shared_part(whole, stage, Sharing.TENSOR, topo.load("laptop"))
    >>> round(part.forward_s, 2), round(part.backward_s, 2)  # 8 GB at 30 Gbps: 2.13 s, twice
    (6.27, 8.27)
    """
    degree = len(stage.group)
    if degree == 1:
        return part
    forward_s, backward_s = _exchanges_s(stage, sharing, cluster)
    weight_s, input_s = part.backward_weight_s, part.backward_input_s
    update_s = part.update_s
    if sharing is not Sharing.DATA:
        # Gradients are gathered once in a step, for the messages to other replicas.
        tensor = degree // stage.data_parts
        gathered_s = _ring_s(stage.group[:tensor], cluster, stage.gradient_bytes) / 2
        update_s = update_s / tensor + gathered_s
    return replace(
        part,
        forward_s=part.forward_s / degree + forward_s,
        backward_s=part.backward_s / degree + backward_s,
        backward_weight_s=None if weight_s is None else weight_s / degree,
        backward_input_s=None if input_s is None else input_s / degree + backward_s,
        update_s=update_s,
    )


def _exchanges_s(stage: SharedStage, sharing: Sharing, cluster: Cluster) -> tuple[float, float]:
    """Return the seconds of the exchanges of a forward and of a backward."""
    if sharing is Sharing.ZERO3:
        whole_s = _ring_s(stage.group, cluster, stage.gradient_bytes)
        return whole_s / 2, whole_s
    if sharing is Sharing.DATA:
        return 0.0, _ring_s(stage.group, cluster, stage.gradient_bytes)
    tensor = len(stage.group) // stage.data_parts
    each_s = _ring_s(stage.group[:tensor], cluster, stage.activation_bytes / stage.data_parts)
    summed_s = _ring_s(stage.group[::tensor], cluster, stage.gradient_bytes / tensor)
    num_layers = _ALL_REDUCES * stage.num_layers
    num_back = num_layers * (1 + stage.recomputes) + stage.is_last
    if sharing is Sharing.SEQUENCE:
        num_back += stage.num_layers  # two all-gathers
    return (num_layers + stage.is_first) * each_s, num_back * each_s + summed_s


def _ring_s(group: tuple[int, ...], cluster: Cluster, num_bytes: float) -> float:
    if len(group) == 1:
        return 0.0
    return ring_s(links_between(cluster, group), num_bytes=num_bytes)
