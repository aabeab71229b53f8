"""ZeRO-3 as DT-FM's authors ran it: data parallel over all devices, every parameter sharded.

Each device computes all layers on its own samples. A pass all-gathers the parameters of one layer
after the other around a ring of all devices, again for the backward unless they are still there,
and reduce-scatters the gradients. The rings of one layer overlap with the compute of another, so
the slower of the two counts::

    forward     max(compute, all-gathers)
    backward    max(compute, all-gathers of what was freed + reduce-scatters)

A ring takes the latencies of all its hops once for each layer, however small the layer is.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, section 7; DeepSpeed's documentation of `stage3_max_live_parameters`.
"""

from jaxpipe.errors import PlanError
from jaxpipe.schedule import gpipe, lower
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.simulate.published.compute_times import durations
from jaxpipe.simulate.published.constants import Constants
from jaxpipe.simulate.published.rings import all_gather_s
from jaxpipe.simulate.published.workload import Workload
from jaxpipe.topo import Cluster

_SAMPLES = 4
"""Samples of a device per pass. Not published; 8 would not fit into 16 GB with 40 layers."""
_LIVE_PARAMETERS = 1e9
"""DeepSpeed's default: as many parameters stay gathered from the forward to the backward."""


def zero3_step(
    cluster: Cluster, order: tuple[int, ...], *, workload: Workload, constants: Constants
) -> StepModel:
    """Return a step of ZeRO-3 whose ring follows `order`; its microbatches are passes.

    Raises:
        PlanError: the devices do not share the batch evenly.
    """
    size = len(order)
    if workload.batch % (size * _SAMPLES):
        raise PlanError(
            f"devices share the batch in passes of {_SAMPLES} samples: `batch` is "
            f"{workload.batch} for {size} devices; take a multiple of {size * _SAMPLES}"
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
    parameters = _num_parameters(workload)
    freed = max(0.0, parameters - _LIVE_PARAMETERS) / parameters
    passes = gpipe(num_stages=1, num_microbatches=workload.batch // (size * _SAMPLES))
    return StepModel(
        cluster=cluster,
        placement=placement,
        # One replica: the rings are part of the durations, and nothing else is reduced.
        phases=(Phase(schedule=lower(passes, tied=False, num_replicas=1)),),
        forward_s=tuple(max(_SAMPLES * each, gather_s) for each in compute.forward_s),
        backward_s=tuple(
            max(_SAMPLES * each, (1 + freed) * gather_s) for each in compute.backward_s
        ),
    )


def _num_parameters(workload: Workload) -> float:
    return workload.gradient_bytes(workload.num_layers, is_first=True) / workload.bytes_per_value


def _gather_s(
    cluster: Cluster, order: tuple[int, ...], *, workload: Workload, constants: Constants
) -> float:
    """Return the seconds of the all-gathers of all parameters, layer by layer."""

    def ring_s(num_bytes: float) -> float:
        return all_gather_s(
            cluster,
            [order],
            num_bytes / len(order),
            nic_efficiency=constants.network.nic_efficiency,
            host_bytes_per_s=constants.network.host_bytes_per_s,
        )

    # Parameters have as many bytes as their gradients.
    layer_bytes = workload.gradient_bytes(1, is_first=False)
    embedding_bytes = workload.gradient_bytes(0, is_first=True)
    return workload.num_layers * ring_s(layer_bytes) + ring_s(embedding_bytes)
