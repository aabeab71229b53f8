"""Hostfiles of Open MPI, MPICH and SLURM: the processes of each host, and the placement of ranks.

::

    Open MPI                    MPICH      SLURM_HOSTFILE
    gpu01 slots=4               gpu01:4    gpu[01-02]
    gpu02 slots=2 max_slots=2   gpu02:2    gpu01*3

Open MPI's hostfile has slots, and a rankfile places the ranks. MPICH assigns ranks line by line, so
its hostfile is the placement as well.

Sources: Open MPI 5 and PRRTE 3, `prte-map(1)` and `src/util/hostfile`; MPICH, "Using the Hydra
Process Manager"; SLURM, `srun(1)`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from jaxpipe.foreign_file import lines_of
from jaxpipe.topo.cluster import Cluster, Device
from jaxpipe.topo.names import is_address, is_host_name
from jaxpipe.topo.slurm import expand

_BLANKS = " \t\v\f"
"""Of Open MPI; other blanks and ends of lines of Unicode are part of a word."""
_AROUND_EQUALS = re.compile(rf"[{_BLANKS}]*=[{_BLANKS}]*")
_BETWEEN_WORDS = re.compile(rf"[{_BLANKS}]+")
_COMMENT = re.compile(r"#|//")
_SIGN = re.compile("[:*]")
_COUNT = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)
_SLOTS = ("slots", "count", "cpu")
_MAX_SLOTS = tuple(
    word for name in _SLOTS for sep in "_-" for word in (f"max{sep}{name}", f"{name}{sep}max")
)
_NOT_OBEYED = ("username", "user-name", "user_name", "user", "port", "binding", "ifname")
"""Settings that change how a host is reached or where its processes run, but not how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSlots:
    """A host and the number of its processes."""

    host: str
    num_slots: int


def parse_hostfile(text: str) -> tuple[HostSlots, ...]:
    r"""Return the hosts of a hostfile of Open MPI, MPICH or SLURM, in order.

    A line of a name alone is one slot (for Open MPI, as many as the host has cores, which no file
    states), and such lines of the same host add up. `slots` stands once for each host, as in Open
    MPI; without it `max_slots` is their number.

    >>> parse_hostfile("gpu01 slots = 2 max_slots = 4 # Open MPI\n")
    (HostSlots(host='gpu01', num_slots=2),)
    >>> [(h.host, h.num_slots) for h in parse_hostfile("gpu01:2\ngpu02\ngpu02\n")]
    [('gpu01', 2), ('gpu02', 2)]
    >>> [(h.host, h.num_slots) for h in parse_hostfile("gpu[01-02]\ngpu01*3\n")]
    [('gpu01', 4), ('gpu02', 1)]

    Raises:
        ValueError: a number of slots or a word is invalid, or no line names a host.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(lines_of(text), start=1):
        content = _COMMENT.split(line)[0].strip(_BLANKS)
        if not content:
            continue
        word, *settings = _BETWEEN_WORDS.split(_AROUND_EQUALS.sub("=", content))
        names, count = _with_settings(word, settings, number) if settings else _alone(word, number)
        for name in names:
            if settings and name in slots:
                raise ValueError(
                    f"line {number} of a hostfile gives slots to a host that has some: `slots` "
                    "must stand once for each host; leave one of its lines out"
                )
            slots[name] = slots.get(name, 0) + count
    if not slots:
        raise ValueError(
            "cannot parse the hostfile: it must have a line for each host, for example `gpu01 "
            "slots=4`, and has none"
        )
    return tuple(HostSlots(host=host, num_slots=count) for host, count in slots.items())


def _alone(word: str, number: int) -> tuple[tuple[str, ...], int]:
    """Return the hosts of a line of one word, and the slots of each."""
    host, *counted = _SIGN.split(word, maxsplit=1)
    try:
        names = (host,) if counted else expand(host)
    except ValueError as error:
        raise ValueError(f"line {number} of a hostfile: {error}") from None
    if not (names and all(map(_COUNT.fullmatch, counted)) and all(map(is_host_name, names))):
        raise _wrong(word, number)
    return names, int(counted[0]) if counted else 1


def _with_settings(word: str, settings: list[str], number: int) -> tuple[tuple[str], int]:
    """Return the host of a line with settings of Open MPI or MPICH, and its slots."""
    pairs = [setting.partition("=") for setting in settings]
    values = {key: value for key, _, value in pairs}
    for key in _NOT_OBEYED:
        if key in values:
            raise ValueError(
                f"line {number} of a hostfile sets `{key}`, which jaxpipe does not pass on: leave "
                "it out; a user or a port stands in ~/.ssh/config, an interface in `run.interface`"
            )
    given = [value for key, value in values.items() if key in _SLOTS]
    most = [value for key, value in values.items() if key in _MAX_SLOTS]
    is_right = (
        is_host_name(word)
        and len(values) == len(pairs) == len(given) + len(most)
        and len(given) < 2
        and len(most) < 2
        and all(map(_COUNT.fullmatch, given + most))
    )
    # Open MPI refuses a maximum below the slots.
    if not is_right or (given and most and int(most[0]) < int(given[0])):
        raise _wrong(word, number)
    return (word,), int((given or most)[0])


def _wrong(word: str, number: int) -> ValueError:
    """Return why a line is refused; the file may be another one, such as /etc/shadow: not what."""
    if "@" in word:
        return ValueError(
            f"line {number} of a hostfile has a user before the host: state the user in "
            "~/.ssh/config, and leave it out here"
        )
    parts = (word, word.rpartition(":")[0])
    if any(":" in part and is_address(part.strip("[]")) for part in parts):
        return ValueError(
            f"line {number} of a hostfile has an address of IPv6, which holds colons: give it a "
            "name in /etc/hosts, and write the name"
        )
    return ValueError(
        f"line {number} of a hostfile must be `host slots=N`, `host:N` or names as in SLURM, with "
        "names of hosts, N at least 1, and no other setting than slots and max_slots; it is "
        "something else"
    )


def check_first_words(hosts: Iterable[str]) -> None:
    """Check that hosts differ before their first dot, as Open MPI tells them apart.

    Of `a.x` and `a.y` it starts all processes on the first (measured, 5.0.11).

    >>> check_first_words(["10.0.0.1", "10.0.0.2", "a.x", "b.x"])

    Raises:
        ValueError: two do not.
    """
    full: dict[str, str] = {}
    for host in hosts:
        word = host if is_address(host) else host.partition(".")[0]
        if full.setdefault(word, host) != host:
            raise ValueError(
                f"`hosts` must differ before the first dot, where Open MPI ends a name: {host} and "
                f"{full[word]} do not; name one of them otherwise, in /etc/hosts too"
            )


def openmpi_hostfile(cluster: Cluster) -> str:
    """Return a hostfile of the cluster, with a slot for each device.

    Raises:
        ValueError: Open MPI takes two hosts for one (`check_first_words`).
    """
    check_first_words(host.name for host in cluster.hosts)
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
