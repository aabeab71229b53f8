"""Meters of a run in an emulated network: bytes, processor seconds and memory of each host.

All processes of a host are in its network namespace, whatever started them, so what a host uses is
what they use: read in intervals from `/proc` (proc(5)). The interface counters of a host are those
that its processes see.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from experiments.emulated_links import CannotMeasureError
from jaxpipe.topo.emulate import Emulation
from jaxpipe.topo.emulate.addresses import DEVICE
from jaxpipe.topo.emulate.owner import NAMESPACES

_INTERVAL_S = 0.25
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup/cpu")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PERIOD_US = 100_000
# Fields of /proc/PID/stat after the name in parentheses.
_USER, _SYSTEM, _RESIDENT = 11, 12, 21
_SENT = 8  # of the words behind the colon of a line of /proc/PID/net/dev


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What all hosts have used up to a moment; `steps` have ended, None before training."""

    steps: int | None
    cpu_s: float
    sent_bytes: int
    resident_bytes: int
    """Of the host that has most at this moment [bytes]."""


@dataclass(slots=True)
class Meters:
    """The samples of a run, in order of time."""

    samples: list[Sample] = field(default_factory=list)
    _ticks: dict[tuple[str, str], int] = field(default_factory=dict)
    _sent: dict[str, int] = field(default_factory=dict)

    def read(self, namespaces: Mapping[str, int], *, steps: int | None) -> dict[str, list[int]]:
        """Add a sample; return the processes of each host. `namespaces` has their inodes."""
        processes: dict[str, list[int]] = {host: [] for host in namespaces}
        resident = dict.fromkeys(namespaces, 0)
        host_of = {inode: host for host, inode in namespaces.items()}
        for pid in filter(str.isdigit, os.listdir(_PROC)):
            # Processes end at any time.
            with suppress(OSError):
                host = host_of.get((_PROC / pid / "ns/net").stat().st_ino)
                if host is None:
                    continue
                words = (_PROC / pid / "stat").read_text().rpartition(")")[2].split()
                began = words[19]  # pids are used again
                self._ticks[pid, began] = int(words[_USER]) + int(words[_SYSTEM])
                resident[host] += int(words[_RESIDENT]) * _PAGE_BYTES
                self._sent[host] = _sent_bytes(pid)
                processes[host].append(int(pid))
        self.samples.append(
            Sample(
                steps=steps,
                cpu_s=sum(self._ticks.values()) / _TICKS_PER_S,
                sent_bytes=sum(self._sent.values()),
                resident_bytes=max(resident.values()),
            )
        )
        return processes

    def of_training(self) -> tuple[float, int]:
        """Return processor seconds and bytes sent, from before the first step to the last one.

        What comes before, compilation for example, is not counted.
        """
        training = [sample for sample in self.samples if sample.steps is not None]
        if not training:
            return 0.0, 0
        steps = training[-1].steps
        last = next(sample for sample in training if sample.steps == steps)
        first = training[0]
        return last.cpu_s - first.cpu_s, last.sent_bytes - first.sent_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that the processes of one host have had in memory at once."""
        return max((sample.resident_bytes for sample in self.samples), default=0)


@contextmanager
def metered(
    emulation: Emulation, *, num_steps: Callable[[], int | None], half_cores: Sequence[str] = ()
) -> Iterator[Meters]:
    """Read the meters of all hosts in intervals; `half_cores` are hosts that get half of a core.

    Raises:
        CannotMeasureError: a host cannot be limited.
    """
    namespaces = _namespaces(emulation)
    meters, ended = Meters(), threading.Event()
    with _limited(half_cores) as group:

        def watch() -> None:
            while not ended.wait(_INTERVAL_S):
                processes = meters.read(namespaces, steps=num_steps())
                for pid in (pid for host in half_cores for pid in processes[host]):
                    with suppress(OSError):
                        (group / "cgroup.procs").write_text(str(pid))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield meters
        finally:
            ended.set()
            thread.join()
            meters.read(namespaces, steps=num_steps())


def processes_of(emulation: Emulation, host: str, *, program: str) -> list[int]:
    """Return the processes of a host whose command line contains a text."""
    inode = _namespaces(emulation)[host]
    pids = []
    for pid in filter(str.isdigit, os.listdir(_PROC)):
        with suppress(OSError):
            is_inside = (_PROC / pid / "ns/net").stat().st_ino == inode
            if is_inside and program.encode() in (_PROC / pid / "cmdline").read_bytes():
                pids.append(int(pid))
    return pids


def _namespaces(emulation: Emulation) -> dict[str, int]:
    """Return the inode of the network namespace of each host."""
    return {
        host.name: (NAMESPACES / emulation.owner.namespace(number)).stat().st_ino
        for number, host in enumerate(emulation.cluster.hosts)
    }


@contextmanager
def _limited(hosts: Sequence[str]) -> Iterator[Path]:
    """Make a cgroup of half a core for hosts, if there are any; remove it at the end."""
    group = _CGROUPS / f"over-the-wire-{os.getpid()}"
    if not hosts:
        yield group
        return
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(_PERIOD_US // 2))
    except OSError as error:
        raise CannotMeasureError(f"half a core needs the cpu controller of cgroups: {error}") from (
            error
        )
    try:
        yield group
    finally:
        # Processes that still live go back to the group above: a group that has some stays.
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (_CGROUPS / "cgroup.procs").write_text(pid)
        group.rmdir()


def _sent_bytes(pid: str) -> int:
    """Return the bytes that the interface of the emulated network has sent, seen by a process."""
    for line in (_PROC / pid / "net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == DEVICE:
            return int(counts.split()[_SENT])
    return 0
