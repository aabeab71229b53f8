"""Hosts of a plan as numbered workers that are alike: which of them is which does not matter.

A scheduler of containers starts equal workers and names them itself. A rankfile refers to them by
number, `+n0` for the first line of a hostfile.

Source: `prte-map(1)` for `+n0`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxpipe.errors import PlanError
from jaxpipe.launch.launch_spec import Launch

if TYPE_CHECKING:
    from jaxpipe.topo import Device


def check_alike(devices: "Sequence[Device]", target: str, *, instead: str) -> None:
    """Check that workers with these devices are equal; `instead` says what else to do.

    Raises:
        PlanError: the devices with ranks are unlike.
    """
    kinds = {
        (
            device.gpu,
            device.effective_flops_per_s,
            device.peak_flops_per_s,
            device.relative_speed,
            device.memory_bytes,
        ): device.name
        for device in devices
    }
    if len(kinds) > 1:
        raise PlanError(
            f"`--target` {target} starts equal workers, which it puts on any node: the plan has "
            f"unlike devices, such as {' and '.join(list(kinds.values())[:2])}, and would lose its "
            f"placement; {instead}"
        )


def ranks_per_worker(devices: "Sequence[Device]", workers: str, *, instead: str) -> int:
    """Return the number of ranks that the hosts of these devices have in common.

    Raises:
        PlanError: they have different numbers.
    """
    counts = Counter(device.host for device in devices)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{host} {count}" for host, count in counts.items())
        raise PlanError(
            f"`plan` must have the same number of ranks for each worker of {workers}, not "
            f"{listed}; {instead}"
        )
    return next(iter(counts.values()))


def worker_slots(launch: Launch) -> list[int]:
    """Return the number of each rank among those of its host."""
    taken: Counter[str] = Counter()
    slots: list[int] = []
    for device in launch.devices:
        slots.append(taken[device.host])
        taken[device.host] += 1
    return slots


def worker_rank_lines(launch: Launch, hosts: Sequence[str]) -> list[str]:
    """Return the lines of a rankfile for workers in the order of `hosts`."""
    numbers = {host: number for number, host in enumerate(hosts)}
    ranks = enumerate(zip(launch.devices, worker_slots(launch), strict=True))
    return [f"rank {rank}=+n{numbers[device.host]} slot={slot}" for rank, (device, slot) in ranks]
