"""Dollars of a step: of the devices for its seconds, and of the bytes that leave their regions.

::

    dollars   seconds x the prices of the devices in use
              + bytes of activations and gradients between regions x the price of the sender's

With an outer loop a step has its part of an outer step, of the seconds as of the bytes. Devices are
paid for as long as a step lasts, whether they compute or wait; those that a plan leaves out are
given back.
"""

from collections.abc import Iterator

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.simulate.outer_step import mean_messages
from jaxpipe.simulate.plan_step import Conditions
from jaxpipe.topo import Cluster, Device

_HOUR_S = 3600.0


def step_dollars(plan: Plan, conditions: Conditions, *, step_s: float) -> float:
    """Return the dollars of a step of a plan that takes `step_s`.

    Raises:
        PlanError: the price of a device in use is not known, or the plan has no such islands.
    """
    devices = conditions.cluster.devices
    rate = sum(_dollars_per_hour(devices[device]) for group in plan.groups for device in group)
    return rate * step_s / _HOUR_S + sum(_egress(plan, conditions))


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


def _egress(plan: Plan, conditions: Conditions) -> Iterator[float]:
    """Yield the dollars of each message between regions."""
    devices = conditions.cluster.devices
    for source, destination, num_bytes in mean_messages(plan, conditions):
        sender = devices[source]
        if sender.region != devices[destination].region:
            yield num_bytes * (sender.egress_dollars_per_gb or 0.0) / 1e9
