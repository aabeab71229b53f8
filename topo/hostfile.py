"""Hostfiles of Open MPI and MPICH: the processes of each host, and the placement of ranks.

::

    Open MPI                    MPICH
    gpu01 slots=4               gpu01:4
    gpu02 slots=2 max_slots=2   gpu02:2

Open MPI's hostfile has slots, and a rankfile places the ranks. MPICH assigns ranks line by line, so
its hostfile is the placement as well.

Sources: Open MPI 5 and PRRTE 3, `prte-map(1)`; MPICH, "Using the Hydra Process Manager".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from jaxpipe.topo.cluster import Cluster, Device
from jaxpipe.topo.names import is_name

_AROUND_EQUALS = re.compile(r"\s*=\s*")
_COUNT = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)
_SLOTS = ("slots", "count", "cpu")
_SETTINGS = frozenset(
    # Open MPI's, then MPICH's.
    (
        *(*_SLOTS, "max_slots", "max-slots", "slots_max", "slots-max", "username", "user", "port"),
        *("binding", "ifname"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSlots:
    """A host and the number of its processes."""

    host: str
    num_slots: int


def parse_hostfile(text: str) -> tuple[HostSlots, ...]:
    r"""Return the hosts of a hostfile of either MPI, in order.

    A line without a number is one slot, and lines of the same host add up, as in both MPIs. Blanks
    may surround `=`, as in Open MPI; other words of a line must be settings that one of them knows.

    >>> parse_hostfile("gpu01 slots=2 # Open MPI\n")
    (HostSlots(host='gpu01', num_slots=2),)
    >>> parse_hostfile("gpu01 slots = 2 max_slots = 4\n")
    (HostSlots(host='gpu01', num_slots=2),)
    >>> [(h.host, h.num_slots) for h in parse_hostfile("gpu01:2\ngpu02\ngpu02\n")]
    [('gpu01', 2), ('gpu02', 2)]

    Raises:
        ValueError: a number of slots or a word is invalid, or no line names a host.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = _AROUND_EQUALS.sub("=", line.split("#")[0]).split()
        if words:
            host, count = _host_and_slots(words, number)
            slots[host] = slots.get(host, 0) + count
    if not slots:
        raise ValueError(
            "cannot parse the hostfile: it must have a line for each host, for example `gpu01 "
            "slots=4`, and has none"
        )
    return tuple(HostSlots(host=host, num_slots=count) for host, count in slots.items())


def _host_and_slots(words: list[str], number: int) -> tuple[str, int]:
    pairs = [word.partition("=") for word in words[1:]]
    settings = {key: value for key, _, value in pairs}
    host, colon, count = words[0].partition(":")
    counts = [count] if colon else []
    counts += [settings[key] for key in _SLOTS if key in settings]
    given = counts[0] if counts else "1"
    is_known = len(settings) == len(pairs) and all(
        equals and value and key in _SETTINGS for key, equals, value in pairs
    )
    is_count = _COUNT.fullmatch(given) is not None and len(counts) < 2
    # The file may be another one than its author says, such as /etc/shadow: name only the line.
    if not (is_name(host) and is_known and is_count):
        raise ValueError(
            f"line {number} of a hostfile must be `host slots=N` or `host:N`, with the name of a "
            f"host, N at least 1 and no other setting than {', '.join(sorted(_SETTINGS))}; it is "
            "something else"
        )
    return host, int(given)


def openmpi_hostfile(cluster: Cluster) -> str:
    """Return a hostfile of the cluster, with a slot for each device."""
    counts = {host.name: 0 for host in cluster.hosts}
    for device in cluster.devices:
        counts[device.host] += 1
    return "".join(f"{host} slots={count}\n" for host, count in counts.items() if count)


def openmpi_rankfile(cluster: Cluster, devices: Sequence[int]) -> str:
    """Return a rankfile: rank `r` runs on the host of device `devices[r]`.

    A slot is the number of the device on its host. Use it as `mpirun --hostfile HOSTS --map-by
    rankfile:FILE=RANKS --bind-to none`; bound, a slot would be one core.

    Raises:
        ValueError: a device does not exist, or occurs twice.
    """
    slots = _slots(cluster)
    return "".join(
        f"rank {rank}={device.host} slot={slots[device.name]}\n"
        for rank, device in enumerate(_chosen(cluster, devices))
    )


def mpich_hostfile(cluster: Cluster, devices: Sequence[int]) -> str:
    """Return a hostfile in the order of ranks: rank `r` runs on the host of device `devices[r]`.

    Use it as `mpiexec -f HOSTS -n N`.

    Raises:
        ValueError: a device does not exist, or occurs twice.
    """
    runs = groupby(device.host for device in _chosen(cluster, devices))
    return "".join(f"{host}:{len(list(run))}\n" for host, run in runs)


def _slots(cluster: Cluster) -> dict[str, int]:
    """Return the number of each device on its host."""
    seen: dict[str, int] = {}
    slots: dict[str, int] = {}
    for device in cluster.devices:
        slots[device.name] = seen.get(device.host, 0)
        seen[device.host] = slots[device.name] + 1
    return slots  # devices of a host need not follow each other


def _chosen(cluster: Cluster, devices: Sequence[int]) -> list[Device]:
    for rank, device in enumerate(devices):
        if device not in range(len(cluster)):
            raise ValueError(
                f"`devices` must be from 0 to {len(cluster) - 1} in cluster {cluster.name!r}; rank "
                f"{rank} is on device {device}"
            )
    if len(set(devices)) < len(devices):
        raise ValueError(f"`devices` must name each device once at most, not {devices}")
    return [cluster.devices[device] for device in devices]
