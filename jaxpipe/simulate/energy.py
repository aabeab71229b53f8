"""Watt-hours of a step: of the devices of a plan, for its seconds.

A device counts with the power of the cluster file, or else with the thermal design power of its GPU
type, whether it computes or waits: more than a device draws that waits. Hosts, switches and cooling
are not counted.
"""

from collections.abc import Sequence

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.topo import Cluster, Device

_HOUR_S = 3600.0


def step_watt_hours(plan: Plan, cluster: Cluster, *, step_s: float) -> float:
    """Return the watt-hours of a step of a plan.

    Raises:
        PlanError: the power of a device in use is not known.
    """
    used = [cluster.devices[device] for group in plan.groups for device in group]
    return sum(_watts(used)) * step_s / _HOUR_S


def check_power(cluster: Cluster) -> None:
    """Check that the power of all devices is known.

    Raises:
        PlanError: it is not.
    """
    _watts(cluster.devices)


def _watts(devices: Sequence[Device]) -> list[float]:
    for device in devices:
        if device.watts is None:
            raise PlanError(
                f"energy is that of known devices: `watts` of device {device.name!r} is missing; "
                "add it to its hosts, or a `gpu` of the table"
            )
    return [device.watts for device in devices if device.watts is not None]
