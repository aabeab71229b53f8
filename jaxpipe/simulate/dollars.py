"""Dollars of a step: of the devices for its seconds, and of the bytes that leave their regions.

::

    dollars   seconds x the prices of the devices in use
              + bytes of activations and gradients between regions x the price of the sender's

Devices are paid for as long as a step lasts, whether they compute or wait; those that a plan leaves
out are given back.
"""

from collections.abc import Iterator

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.topo import Cluster, Device

_HOUR_S = 3600.0


def step_dollars(plan: Plan, job: StepModel, *, step_s: float) -> float:
    """Return the dollars of a step of a plan, of which `job` is the simulated step.

    Raises:
        PlanError: the price of a device in use is not known.
    """
    devices = job.cluster.devices
    rate = sum(_dollars_per_hour(devices[device]) for group in plan.groups for device in group)
    return rate * step_s / _HOUR_S + sum(_egress(job))


def check_prices(cluster: Cluster) -> None:
    """Check that all devices have a price, and regions one for what leaves them.

    Raises:
        PlanError: they have not.
    """
    for device in cluster.devices:
        _dollars_per_hour(device)
        if len(cluster.regions) > 1 and device.egress_dollars_per_gb is None:
            raise _unpriced(device, "egress_dollars_per_gb")


def _dollars_per_hour(device: Device) -> float:
    if device.dollars_per_hour is None:
        raise _unpriced(device, "dollars_per_hour")
    return device.dollars_per_hour


def _unpriced(device: Device, field: str) -> PlanError:
    return PlanError(
        f"dollars are those of the cluster file: `{field}` of device {device.name!r} is missing; "
        "add it to its hosts (0 is a price)"
    )


def _egress(job: StepModel) -> Iterator[float]:
    """Yield the dollars of each message between regions."""
    devices = [job.cluster.devices[job.device(rank)] for rank in range(job.num_ranks)]
    for source, destination, num_bytes in job.all_messages():
        sender = devices[source]
        if sender.region != devices[destination].region:
            yield num_bytes * (sender.egress_dollars_per_gb or 0.0) / 1e9
