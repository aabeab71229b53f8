"""The processes of a run: find them by its configuration, wait for them, and clean up.

The only importer of psutil, an extra that `jaxpipe chaos` needs.
"""

import os
import re
import select
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from jaxpipe.errors import ConfigError, RunError
from jaxpipe.runtime.process.launched_rank import launched_rank

try:
    import psutil
except ModuleNotFoundError as error:
    raise ConfigError(
        "`jaxpipe chaos` finds the processes of its runs with psutil, which is missing: "
        "pip install 'jaxpipe[chaos]'"
    ) from error

__all__ = [
    "descendants_of",
    "processes_of",
    "psutil",
    "ranks_among",
    "remove",
    "shared_memory_of",
    "wait_for_ends",
]


def processes_of(config: Path) -> list[psutil.Process]:
    """Return all processes of a run, launchers included: the path is in their command lines."""
    everything = psutil.process_iter(["cmdline"])
    # A whole argument; None where access is denied.
    return [p for p in everything if str(config) in (p.info["cmdline"] or ())]


def descendants_of(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process; none if it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def ranks_among(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """Return the ranks among processes; launchers have no rank."""
    found: dict[int, psutil.Process] = {}
    for process in processes:
        with suppress(psutil.Error):
            if (here := launched_rank(process.environ())) is not None:
                found[here.rank] = process
    return found


def shared_memory_of(pid: int) -> set[str]:
    """Return the named files in shared memory that a process maps."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    return set(re.findall(r"(/dev/shm/\S+)$", maps, flags=re.MULTILINE))


def wait_for_ends(pids: Iterable[int], *, timeout_s: float) -> float:
    """Wait until processes have ended, and return when the last one had, by `time.monotonic`.

    Raises:
        RunError: one does not end.
    """
    poll, descriptors = select.poll(), set[int]()
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                # A descriptor stays with its process; a number may be used again by another one.
                descriptors.add(os.pidfd_open(pid))
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        waiting, deadline_s = set(descriptors), time.monotonic() + timeout_s
        while waiting:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise RunError(f"{len(waiting)} processes do not end within {timeout_s:g} s")
            for descriptor, _ in poll.poll(1000 * left_s):  # milliseconds
                poll.unregister(descriptor)
                waiting.discard(descriptor)
        return time.monotonic()
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def remove(config: Path, *, within_s: float) -> list[str]:
    """Kill the processes of a run that do not end by themselves; return their names."""
    _, alive = psutil.wait_procs(processes_of(config), timeout=within_s)
    left: list[str] = []
    for process in alive:
        with suppress(psutil.Error):
            # A zombie has ended; its parent has not looked.
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"process {process.pid} ({process.name()})")
                process.kill()
    return left
