"""ZeRO-3 as DT-FM's authors ran it: data parallel over all devices, every parameter sharded.

Each device computes all layers on its own samples. Before a module computes, a ring of all devices
all-gathers its weight; after the backward, a ring reduces the gradients, a bucket of many layers at
a time. Nothing overlaps, so a pass takes the sum::

    layers       0 ....... gathered ....... stay, at most a billion parameters
    forward      compute + all-gathers of the layers that did not stay after the last backward
    backward     compute + all-gathers of those that did not stay after the forward + reductions

The forward ends with the last layers, with which the backward begins, and the backward with the
first. So both skip the layers that stay. A ring takes the latencies of all its hops, however small
the weight is: many small rings make long links slow.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, section 7; DeepSpeed's documentation of `stage3_max_live_parameters` and
`reduce_bucket_size`. Which of its settings the runs had is not published: that all gathers wait,
that the layers stay in the forward, too, and the bytes of a gradient were chosen by the published
times of all four cases.
"""

from functools import partial

from jaxpipe.baselines.published.compute_times import durations
from jaxpipe.baselines.published.rings import all_gather_s
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.errors import PlanError
from jaxpipe.schedule import gpipe, lower
from jaxpipe.simulate.constants import Constants
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.topo import Cluster

SAMPLES = 4
"""Samples of a device per pass. Not published; 8 would not fit into 16 GB with 40 layers."""
_LIVE_PARAMETERS = 1e9
"""DeepSpeed's default: as many parameters stay gathered."""
_BUCKET_PARAMETERS = 5e8
"""DeepSpeed's default: gradients are reduced when there are as many."""
_REDUCTION_PASSES = 2
"""A reduction moves twice the bytes of an all-gather: gradients in fp32, or all-reduced in fp16."""
_MATRICES = (3, 1, 4, 4)
"""The weights of a layer in units of dim^2: attention's two, the MLP's two."""


def zero3_step(
    cluster: Cluster, order: tuple[int, ...], *, workload: Workload, constants: Constants
) -> StepModel:
    """Return a step of ZeRO-3 whose ring follows `order`; its microbatches are passes.

    Raises:
        PlanError: the devices do not share the batch evenly.
    """
    size = len(order)
    if workload.batch % (size * SAMPLES):
        raise PlanError(
            f"`batch` ({workload.batch}) must be a multiple of {size * SAMPLES}: {size} devices "
            f"take {SAMPLES} samples in each pass"
        )
    placement = tuple((device,) for device in order)
    compute = durations(
        cluster,
        placement,
        (workload.num_layers,),
        workload=workload,
        speeds=constants.speeds(workload.precision),
    )
    gather_s = _gather_s(cluster, order, workload=workload, constants=constants)
    reduce_s = _reduce_s(cluster, order, workload=workload, constants=constants)
    passes = gpipe(num_stages=1, num_microbatches=workload.batch // (size * SAMPLES))
    return StepModel(
        cluster=cluster,
        placement=placement,
        # One replica: the rings are part of the durations, and nothing else is reduced.
        phases=(Phase(schedule=lower(passes, tied=False, num_replicas=1)),),
        forward_s=tuple(SAMPLES * compute_s + gather_s for compute_s in compute.forward_s),
        backward_s=tuple(
            SAMPLES * compute_s + gather_s + reduce_s for compute_s in compute.backward_s
        ),
    )


def _gather_s(
    cluster: Cluster, order: tuple[int, ...], *, workload: Workload, constants: Constants
) -> float:
    """Return the seconds of the all-gathers of a forward, or of a backward, matrix by matrix.

    The embeddings, which are used at both ends of a pass, stay beyond the billion. Biases and norms
    are too small for a gather of their own.
    """
    matrix_bytes = workload.dim**2 * workload.bytes_per_value
    ring_s = partial(_ring_s, cluster, order, constants=constants)
    layer_s = sum(ring_s(count * matrix_bytes) for count in _MATRICES)
    stay = _LIVE_PARAMETERS / (sum(_MATRICES) * workload.dim**2)
    return max(0.0, workload.num_layers - stay) * layer_s


def _reduce_s(
    cluster: Cluster, order: tuple[int, ...], *, workload: Workload, constants: Constants
) -> float:
    """Return the seconds of the reductions of all gradients, bucket by bucket."""
    all_bytes = workload.gradient_bytes(workload.num_layers, is_first=True)
    bucket_bytes = min(all_bytes, _BUCKET_PARAMETERS * workload.bytes_per_value)
    bucket_s = _ring_s(cluster, order, _REDUCTION_PASSES * bucket_bytes, constants=constants)
    return all_bytes / bucket_bytes * bucket_s


def _ring_s(
    cluster: Cluster, order: tuple[int, ...], num_bytes: float, *, constants: Constants
) -> float:
    # Like gradients, parts of a ring stream: the limit of a host for activations is not theirs.
    return all_gather_s(
        cluster,
        [order],
        num_bytes / len(order),
        nic_efficiency=constants.network.nic_efficiency,
    )
