"""The groups of devices that remain for ranks: those of a running plan, and others alike."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxpipe.plan import Plan
from jaxpipe.topo import Cluster

Group = tuple[int, ...]
"""The devices of a rank, the one that sends and receives first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingGroups:
    """Groups by their `leads`, which send and receive; `slow` of a lead counts its whole group."""

    leads: tuple[int, ...]
    peers: Mapping[int, Group]
    slow: np.ndarray


def remaining_groups(
    running: Plan, devices: Sequence[int], cluster: Cluster, slow: np.ndarray
) -> RemainingGroups:
    """Return the groups that ranks can have on these devices, in the order of their leads.

    A group of the running plan that has lost devices keeps as many as divide its size: what was
    divisible by that stays divisible. Further devices of a host form groups of the commonest size.
    `slow[device]` is the factor by which a device is slower than that of the profile.
    """
    groups = [group for group in running.groups if set(group) <= set(devices)]
    groups += filter(None, (_shrunk(group, devices) for group in running.groups))
    used = {device for group in running.groups for device in group}
    size = Counter(map(len, running.groups)).most_common(1)[0][0]
    groups += _new_groups([d for d in devices if d not in used], cluster, size)
    position = {device: number for number, device in enumerate(devices)}
    groups.sort(key=lambda group: position[group[0]])
    of_groups = slow.copy()
    for group in groups:
        of_groups[group[0]] = max(slow[list(group)]) / len(group)
    return RemainingGroups(
        leads=tuple(group[0] for group in groups),
        peers={group[0]: group[1:] for group in groups if len(group) > 1},
        slow=of_groups,
    )


def _shrunk(group: Group, devices: Sequence[int]) -> Group:
    """Return what a group that has lost some of its devices can still be; empty for a whole one."""
    left = tuple(device for device in group if device in set(devices))
    if len(left) == len(group):
        return ()
    return left[: max((n for n in range(1, len(left) + 1) if len(group) % n == 0), default=0)]


def _new_groups(devices: Sequence[int], cluster: Cluster, size: int) -> Iterator[Group]:
    """Yield groups of a size, each on one host; devices that fill no group stay without a rank."""
    by_host: dict[str, list[int]] = {}
    for device in devices:
        by_host.setdefault(cluster.devices[device].host, []).append(device)
    for row in by_host.values():
        for start in range(0, len(row) - size + 1, size):
            yield tuple(row[start : start + size])
