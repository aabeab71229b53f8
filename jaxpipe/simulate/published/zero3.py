"""ZeRO-3 as DT-FM's authors ran it: data parallel over all devices, every parameter sharded.

Each device computes all layers on its own samples. Each pass all-gathers the parameters around a
ring of all devices for the forward and again for the backward, and reduce-scatters the gradients.
The rings of one layer overlap with the compute of another, so the slower of the two counts::

    forward     max(compute, one ring)
    backward    max(compute, two rings)

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, section 7: three times the parameters are moved in a pass.
"""

from jaxpipe.errors import PlanError
from jaxpipe.schedule import gpipe, lower
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.simulate.published.compute_times import durations, ring_step_s
from jaxpipe.simulate.published.constants import Constants
from jaxpipe.simulate.published.workload import Workload
from topo import Cluster

_SAMPLES = 4
"""Samples of a device per pass. Not published; more would not fit into memory with 40 layers."""


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
    cut = (workload.num_layers,)
    compute = durations(
        cluster,
        placement,
        cut,
        workload=workload,
        speeds=constants.speeds(workload.precision),
    )
    # Parameters have as many bytes as their gradients.
    parameters = workload.gradient_bytes(workload.num_layers, is_first=True)
    ring_s = (size - 1) * ring_step_s(  # rounds of an all-gather
        cluster, [order], parameters / size, nic_efficiency=constants.network.nic_efficiency
    )
    passes = gpipe(num_stages=1, num_microbatches=workload.batch // (size * _SAMPLES))
    return StepModel(
        cluster=cluster,
        placement=placement,
        # One replica: the rings are part of the durations, and nothing else is reduced.
        phases=(Phase(schedule=lower(passes, tied=False, num_replicas=1)),),
        forward_s=tuple(max(_SAMPLES * each, ring_s) for each in compute.forward_s),
        backward_s=tuple(max(_SAMPLES * each, 2 * ring_s) for each in compute.backward_s),
    )
