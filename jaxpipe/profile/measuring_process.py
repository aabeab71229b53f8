"""Measure in processes of their own, one pinned to each core, so that all cores are busy.

::

    parent   ◄── {"detail": "block: compiling"}     what a process does next: it waits
             ──► (an empty line)                    until all have come there, and all continue
             ◄── {"result": {...}, "share": 0.99}   the last line of each

Two cores share the memory: a process alone would be faster than a rank of two. The processes need
nothing of MPI, and import jax after they are pinned.

The share is that of a core's time which a process has had while it timed its calls. It never waits
then, so a smaller one means that other processes computed on its core: such seconds are not kept.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any, Generic, TypeVar

import msgspec

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.garbage_collection import collect_rarely
from jaxpipe.runtime.process.process_signals import die_with_parent

T = TypeVar("T")
_MOST_PROCESSES = 4
_LEAST_SHARE = 0.9
_SHORT_S = 0.1
"""Of less time, the clock of the processor says little."""
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPICH_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A module to run as `python -m MODULE POSITION WORD...`, and the longest that it may take."""

    module: str
    words: tuple[str, ...] = ()
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredApart(Generic[T]):
    """What was measured, and the least share of its core's time that a process had meanwhile."""

    value: T
    share: float = 1.0

    @property
    def is_alone(self) -> bool:
        """Whether nothing else computed on these cores, but for a tenth."""
        return self.share >= _LEAST_SHARE


def measure_apart(
    measurement: Measurement,
    kind: type[T],
    *,
    cores: Sequence[int],
    observe: Callable[[str], None],
) -> MeasuredApart[list[T]]:
    """Run a measurement on each core at once, on four at most; return their results.

    `observe` is called with what the process on the first core does.

    Raises:
        ConfigError: a process failed, or took too long; all have ended then.
    """
    with _started(measurement, cores[:_MOST_PROCESSES]) as processes:
        while True:
            lines = [process.answer() for process in processes]
            if all("result" in line for line in lines):
                return MeasuredApart(
                    value=[msgspec.convert(line["result"], kind) for line in lines],
                    share=min(line["share"] for line in lines),
                )
            observe(lines[0].get("detail", ""))
            for process in processes:
                process.release()


@dataclass(slots=True)
class _Phase:
    """The share of a core's time that this process has had in phases: the least of them."""

    least_share: float = 1.0
    _begin_s: float | None = None
    _begin_cpu_s: float = 0.0

    def begin(self) -> None:
        self._begin_s, self._begin_cpu_s = time.perf_counter(), time.process_time()

    def end(self) -> None:
        if self._begin_s is None:
            return
        seconds = time.perf_counter() - self._begin_s
        if seconds > _SHORT_S:
            share = (time.process_time() - self._begin_cpu_s) / seconds
            self.least_share = min(self.least_share, share)
        self._begin_s = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The process that has started this one, which measures: the `number`th of `num_processes`."""

    number: int
    num_processes: int
    _phase: _Phase = field(default_factory=_Phase)

    def in_turn(self, items: Sequence[T]) -> list[T]:
        """Return the items from this process's part of them on, then those before.

        >>> Parent(number=1, num_processes=2).in_turn("abcde")
        ['c', 'd', 'e', 'a', 'b']
        """
        first = self.number * len(items) // self.num_processes
        return [*items[first:], *items[:first]]

    def observe(self, detail: str, *, times: bool = False) -> None:
        """Say what is done next, and do it together with the processes on the other cores.

        With `times`, calls are timed from now on, until the next one or the result.
        """
        self._phase.end()
        self._say({"detail": detail})
        if not sys.stdin.readline():
            raise SystemExit("the parent has ended")
        if times:
            self._phase.begin()

    def result(self, value: Any) -> None:
        """Return the result; nothing may follow."""
        self._phase.end()
        self._say({"result": msgspec.to_builtins(value), "share": self._phase.least_share})

    def _say(self, line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def begin_measuring(position: str) -> Parent:
    """Pin this process to a core, before jax is imported, and end it with its parent.

    `position` is the core, the number of the process, and how many there are: `3,0,2`.
    """
    die_with_parent()
    collect_rarely()
    core, number, num_processes = map(int, position.split(","))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    return Parent(number=number, num_processes=num_processes)


def without_mpi() -> dict[str, str]:
    """Return the environment of a process that is no rank."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_MPI_PREFIXES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    name: str
    process: subprocess.Popen[str]
    errors: IO[str]

    def answer(self) -> dict[str, Any]:
        """Return the next line that the process writes."""
        assert self.process.stdout is not None, self.name
        line = self.process.stdout.readline()
        try:
            return json.loads(line)
        except ValueError:
            self.process.kill()
            code = self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines() or [f"exit code {code}"]
            # Behind the error, jax writes notes on its tracebacks.
            last = [line for line in lines if "Error: " in line][-1:] or lines[-1:]
            raise ConfigError(
                f"`{self.name}` could not measure this machine: {last[0]:.200}; state the speed of "
                "devices in the cluster file, as `effective_tflops`"
            ) from None

    def release(self) -> None:
        """Let the process continue."""
        assert self.process.stdin is not None, self.name
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def _started(measurement: Measurement, cores: Sequence[int]) -> Iterator[list[_Process]]:
    logs = [TemporaryFile("w+", errors="replace") for _ in cores]  # noqa: SIM115 - closed below
    positions = [f"{core},{number},{len(cores)}" for number, core in enumerate(cores)]
    processes = [
        _start(measurement, position, log) for position, log in zip(positions, logs, strict=True)
    ]
    timer = Timer(measurement.timeout_s, lambda: [process.process.kill() for process in processes])
    timer.daemon = True
    timer.start()
    try:
        yield processes
    finally:
        timer.cancel()
        for process in processes:
            process.process.kill()
            process.process.communicate()
            process.errors.close()


def _start(measurement: Measurement, position: str, errors: IO[str]) -> _Process:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", measurement.module, position, *measurement.words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        # Without the memory settings of ranks: with them a brief profile of wide layers predicted
        # twice the step that ranks take, and without 1.08 times (measured).
        env=without_mpi(),
        text=True,
    )
    return _Process(name=measurement.module, process=process, errors=errors)
