"""Hosts of the groups of a cluster file: counted, or listed by a hostfile or SLURM's topology."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from jaxpipe.foreign_file import decode_text, reason_of
from jaxpipe.topo.cluster import Host
from jaxpipe.topo.cluster_file import HostGroup
from jaxpipe.topo.hostfile import parse_hostfile
from jaxpipe.topo.slurm import parse_topology
from jaxpipe.topo.units import bytes_from_mib, bytes_per_s_from_gbps

ReadBeside = Callable[[str], bytes]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOfGroup:
    """A host, the number of its devices, and the group that describes them."""

    host: Host
    num_devices: int
    group: HostGroup


def hosts_of(groups: tuple[HostGroup, ...], read_beside: ReadBeside) -> Iterator[HostOfGroup]:
    """Yield the hosts, group by group.

    Raises:
        ValueError: a file cannot be read, or a host of the hostfile is not in SLURM's topology.
    """
    seen: dict[str, int] = {}
    for group in groups:
        listed = group.hostfile or group.slurm_topology
        entries = _listed(group, read_beside) if listed else _counted(group, seen)
        egress = group.nic_gbps if group.egress_gbps is None else group.egress_gbps
        ingress = group.nic_gbps if group.ingress_gbps is None else group.ingress_gbps
        for name, region, num_devices in entries:
            host = Host(
                name=name,
                region=region,
                egress_bytes_per_s=bytes_per_s_from_gbps(egress),
                ingress_bytes_per_s=bytes_per_s_from_gbps(ingress),
                burst_bytes=bytes_from_mib(group.burst_mib),
            )
            yield HostOfGroup(host=host, num_devices=num_devices, group=group)


def _counted(group: HostGroup, seen: dict[str, int]) -> Iterator[tuple[str, str, int]]:
    for region in group.regions:
        for _ in range(group.count):
            # Over all groups: two groups in a region must not both have ohio-0.
            index = seen.get(region, 0)
            seen[region] = index + 1
            yield group.name or f"{region}-{index}", region, group.devices


def _listed(group: HostGroup, read_beside: ReadBeside) -> Iterator[tuple[str, str, int]]:
    switches: dict[str, str] = {}
    if group.slurm_topology is not None:
        switches = parse_beside(group.slurm_topology, parse_topology, read_beside)
    slots = dict.fromkeys(switches, group.devices)
    if group.hostfile is not None:
        listed = parse_beside(group.hostfile, parse_hostfile, read_beside)
        # The hostfile decides which hosts take part, SLURM's topology where they are.
        slots = {entry.host: entry.num_slots for entry in listed}
    for host, num_devices in slots.items():
        if switches and host not in switches:
            raise ValueError(
                f"host {host!r} of `hostfile` {group.hostfile!r} is missing in `slurm_topology` "
                f"{group.slurm_topology!r}: use the same name in both"
            )
        yield host, switches.get(host, group.regions[0]), num_devices


def parse_beside(file: str, parse: Callable[[str], _T], read_beside: ReadBeside) -> _T:
    """Return what a text beside the cluster file says.

    Raises:
        ValueError: it cannot be read, or is invalid; the message names the file.
    """
    try:
        return parse(decode_text(read_beside(file)))
    except (OSError, ValueError) as error:
        raise ValueError(f"`{file:.80}`: {reason_of(error)}") from error
