"""A run over emulated hosts, each with a disk of its own, under `jaxpipe run --hosts`.

::

    this process ─ host 0: jaxpipe run ─ mpirun ─┬─ rank 0      namespaces of network and mounts;
                                                 ├─ host 1 ...  the run folder lies on `disk`, of
                                                 └─ host 2 ...  which each host has its own
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpipe import topo
from jaxpipe.chaos.harness.assertions import (
    ENDS_WITHIN_S,
    check_losses,
    check_samples,
    train_undisturbed,
    write_lossless_config,
)
from jaxpipe.chaos.harness.tiny_run import Started, changed, started
from jaxpipe.chaos.harness.trial import Case, Setup, Trial, one_by_one
from jaxpipe.errors import RunError
from jaxpipe.runtime.metrics.records import METRICS_FILE
from jaxpipe.topo.emulate import Emulation, EmulationError, EngineKind, emulated
from jaxpipe.topo.emulate.commands import run as run_program
from jaxpipe.topo.emulate.engine import check_machine
from jaxpipe.topo.emulate.namespaces import processes_in
from jaxpipe.topo.emulate.own_disks import disk_of

logger = logging.getLogger(__name__)

NUM_HOSTS = 4
FAST = f"homogeneous:hosts={NUM_HOSTS},delay_ms=0,bandwidth_gbps=1e7"
"""Hosts whose links count for nothing in a plan."""

HOOKS = ("--hooks", "jaxpipe.chaos.harness.sample_log:slow_recorder")


STEPS_BEFORE = 5
"""The steps before a fault: compiling is over, and there are checkpoints."""


def over_hosts(run: Callable[[Case], object], *, name: str) -> Callable[[Setup], Iterator[Trial]]:
    """Return the trials of a family over emulated hosts; none, and a warning, without root."""
    trials = one_by_one(run, prepare=_undisturbed)

    def possible(setup: Setup) -> Iterator[Trial]:
        if can_emulate():
            return trials(setup)
        logger.warning("%s: not tried, because network namespaces need root and `ip`", name)
        return iter(())

    return possible


def _undisturbed(setup: Setup) -> Path:
    return train_undisturbed(setup.folder / "undisturbed", setup.dataset)


def can_emulate() -> bool:
    """Return whether this machine and this user can make namespaces."""
    try:
        check_machine()
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsRun:
    """A started run, and the hosts on which it runs; `disk` is the folder that each has its own."""

    started: Started
    emulation: Emulation
    disk: Path

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all hosts."""
        return tuple(host.name for host in self.emulation.cluster.hosts)

    def disk_of(self, number: int) -> Path:
        """Return where this process sees the disk of a host."""
        return disk_of(self.emulation.owner, number, self.disk)

    def folder(self, number: int = 0) -> Path:
        """Return the run folder on the disk of a host."""
        return self.disk_of(number) / "run"

    def num_steps(self) -> int:
        """Return the number of steps in the metrics of host 0."""
        return self.started.num_steps()

    def wait_for_step_after(self, words: str) -> None:
        """Wait until the run has printed some words, and then until a step has ended.

        Raises:
            RunError: that takes too long.
        """
        self.wait_until(lambda: self.said(words), what=f"it says {words!r}")
        since_ns, path = time.time_ns(), self.folder() / METRICS_FILE
        self.wait_until(lambda: _ends_with_a_step(path, since_ns), what="the next step has ended")

    def settle(self, *, after_s: float = 0.0, steps: int = STEPS_BEFORE) -> None:
        """Wait until some steps are done, and then some time.

        Raises:
            RunError: they are not, in time.
        """
        self.wait_for_steps(steps)
        time.sleep(after_s)

    def wait_for_steps(self, steps: int) -> None:
        """Wait until this many steps are done.

        Raises:
            RunError: they are not, in time.
        """
        self.started.wait_for_steps(steps, timeout_s=ENDS_WITHIN_S)

    def wait_until(self, is_so: Callable[[], bool], *, what: str) -> None:
        """Wait for a condition while the run continues.

        Raises:
            RunError: the run ends first, or it takes too long.
        """
        self.started.wait_until(is_so, what=what, timeout_s=ENDS_WITHIN_S)

    def said(self, text: str) -> bool:
        """Return whether the run has printed this."""
        return text in self.started.stdout

    def finish(self, case: Case) -> None:
        """Wait for the end of the run, and check that nothing is lost or doubled.

        Raises:
            RunError: it fails, or a sample or a loss is wrong.
        """
        code = self.started.wait(timeout_s=ENDS_WITHIN_S)
        self.started.expect_success(code)
        check_samples(self.started.config, case.dataset)
        case.figures["loss_differs"] = check_losses(self.started.folder, case.reference)

    def kill(self, number: int) -> float:
        """Kill all processes of a host, and return when."""
        begin_s = time.monotonic()
        while found := processes_in([self.emulation.owner.namespace(number)]):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # one may fork between a look and its end
        return begin_s


def _ends_with_a_step(path: Path, since_ns: int) -> bool:
    """Return whether the last line of metrics is a step, written since a time."""
    # An attempt writes its description first, and removes the steps that it repeats.
    return path.stat().st_mtime_ns > since_ns and b'"step"' in path.read_bytes().splitlines()[-1]


@contextmanager
def hosts_run(
    folder: Path,
    dataset: Path,
    *,
    cluster: str = FAST,
    kind: EngineKind = EngineKind.UNSHAPED,
    hooks: Sequence[str] = HOOKS,
    prepare: Callable[[Emulation, Path], object] | None = None,
    **sections: Mapping[str, Any],
) -> Iterator[HostsRun]:
    """Start a run over emulated hosts; nothing of it may be left after the block.

    `hooks` are words of the command line. `prepare` is called with the network and the folder that
    each host has its own, before the run.

    Raises:
        RunError: a process or a file was left behind; it is removed.
        EmulationError: the hosts cannot be emulated.
    """
    disk = folder / "disk"
    disk.mkdir(parents=True)
    base = {"run": {"folder": str(disk / "run")}, "plan": {"cluster": cluster}}
    config = write_lossless_config(folder, dataset, **changed(base, sections))
    with emulated(topo.load(cluster), kind=kind) as emulation:
        emulation.give_disks([disk])
        if prepare is not None:
            prepare(emulation, disk)
        first = emulation.cluster.hosts[0].name
        settings = (f"{name}={value}" for name, value in emulation.settings.items())
        with started(
            config,
            dataset,
            command="run",
            arguments=("--hosts", *hooks),
            before=("env", *settings, *emulation.enter(first)),
            folder=disk_of(emulation.owner, 0, disk) / "run",
        ) as run:
            yield HostsRun(started=run, emulation=emulation, disk=disk)


_LINKS = ("control", "link0")
"""The way of `mpirun` to its daemon, and that of the ranks' messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutHost:
    """A host whose links are down; `namespace` is its network, `routes` those that it has lost."""

    namespace: str
    routes: tuple[str, ...]

    def reconnect(self) -> None:
        """Take the links up.

        Raises:
            RunError: `ip` failed.
        """
        for device in _LINKS:
            ip("-n", self.namespace, "link", "set", device, "up")
        for route in self.routes:
            ip("-n", self.namespace, "route", "replace", *route.split())


def cut_off(namespace: str) -> CutHost:
    """Take all links of a host down.

    Raises:
        RunError: `ip` failed.
    """
    lines = ip("-n", namespace, "route").splitlines()
    routes = tuple(line for line in lines if "kernel" not in line)
    for device in _LINKS:
        ip("-n", namespace, "link", "set", device, "down")
    return CutHost(namespace=namespace, routes=routes)


def ip(*words: str) -> str:
    """Run `ip`, and return its output.

    Raises:
        RunError: it failed.
    """
    try:
        return run_program("ip", *words)
    except EmulationError as error:
        raise RunError(str(error)) from error
