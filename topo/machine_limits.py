"""What this process may use of its machine: physical cores, and memory.

::

    cores     affinity and cpuset, one of each pair of hyperthreads, at most the container's quota
    memory    that of the machine, at most the container's limit

`root` is the root of the file system, another one in tests.

Source: Linux, `cgroups(7)`, `sched_getaffinity(2)`; Documentation/admin-guide/cgroup-v2.rst.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path

from jaxpipe.foreign_file import lines_of

_ROOT = Path("/")


@cache
def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may use, one of each physical core.

    They are those of the first call: a process that pins itself calls this before.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    else:
        allowed = set(range(os.cpu_count() or 1))
    return limited_cores(allowed)


def limited_cores(
    allowed: Iterable[int], *, has_quota: bool = True, root: Path = _ROOT
) -> tuple[int, ...]:
    """Return one of each physical core among the `allowed`, as many as the quota pays for.

    At least one, and the first of its hyperthreads. Without `has_quota`, all of them.
    """
    first = {siblings_of(core, root=root): core for core in sorted(allowed, reverse=True)}
    cores = sorted(first.values())
    quota = min(_cpu_quotas(root), default=inf) if has_quota else inf
    return tuple(cores if quota >= len(cores) else cores[: max(1, int(quota))])


def siblings_of(core: int, *, root: Path = _ROOT) -> frozenset[int]:
    """Return the hyperthreads of the physical core of `core`, itself among them."""
    topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the latter before Linux 5.3
        with suppress(OSError):
            return numbers_of((topology / name).read_text())
    return frozenset((core,))


def numbers_of(text: str) -> frozenset[int]:
    """Return the numbers in a list in Linux' notation.

    >>> sorted(numbers_of("0-2,7"))
    [0, 1, 2, 7]
    """
    ranges = (part.partition("-") for part in text.strip().split(","))
    return frozenset(
        number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)
    )


def memory_bytes(*, root: Path = _ROOT) -> int | None:
    """Return the bytes of memory that this process and its children may use; None if unknown."""
    known = [*_machine_bytes(root), *_container_bytes(root)]
    return min(known, default=None)


def _machine_bytes(root: Path) -> Iterator[int]:
    with suppress(OSError):
        for line in lines_of((root / "proc/meminfo").read_text()):
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) * 1024


def _container_bytes(root: Path) -> Iterator[int]:
    for names in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for text in _control_files(*names, root=root):
            # `max` in version 2; a number near 2^63 in version 1, which no machine has.
            if text.isdecimal():
                yield int(text)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield how many cores' time each enclosing control group may use."""
    for text in _control_files("", "cpu.max", root=root):
        quota, _, period = text.partition(" ")
        if quota != "max":
            yield int(quota) / int(period or 100_000)
    quotas = _control_files("cpu", "cpu.cfs_quota_us", root=root)
    periods = _control_files("cpu", "cpu.cfs_period_us", root=root)
    for quota, period in zip(quotas, periods, strict=False):
        if int(quota) > 0:  # -1 is no quota
            yield int(quota) / int(period)


def _control_files(controller: str, name: str, *, root: Path) -> Iterator[str]:
    """Yield the contents of a file of this process's control group and of those around it.

    `controller` is empty for version 2. A container may show only the root of its own group.
    """
    folder = root / "sys/fs/cgroup" / controller
    group = Path(_group_of(controller, root))
    for path in (group, *group.parents):
        with suppress(OSError):
            yield (folder / path.relative_to("/") / name).read_text().strip()


def _group_of(controller: str, root: Path) -> str:
    """Return the path of this process's control group, `/` if it is unknown."""
    with suppress(OSError):
        for line in lines_of((root / "proc/self/cgroup").read_text()):
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and path.startswith("/"):
                return path
    return "/"
