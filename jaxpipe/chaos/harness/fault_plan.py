"""The faults that ranks of a run inject, in files next to the run's configuration.

::

    config.toml     the run
    orders.json     the fault plan: what happens, once
    rank-2.pid      the process of each rank
    struck.json     it has happened: created exclusively, so that it happens only once
    halted-2        rank 2 stops itself now
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jaxpipe.chaos.harness.kill_points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Kill the rank `victim` at a point, not before step `step`, which counts from 1."""

    point: Point
    victim: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Stop the ranks `victims` (SIGSTOP), each when it first comes by a point."""

    point: Point
    victims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The faults of a run: a kill, ranks that stop, and a longer compilation."""

    kill: Kill | None = None
    halt: Halt | None = None
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """What has happened, and when: `time.monotonic`, which processes of a host share."""

    victim: int
    doing: str
    at_s: float


def write_fault_plan(config: Path, faults: FaultPlan) -> None:
    """Write the fault plan of the run of a configuration."""
    config.with_name("orders.json").write_bytes(msgspec.json.encode(faults))


def read_fault_plan(config: Path) -> FaultPlan:
    """Return the fault plan of the run of a configuration."""
    return msgspec.json.decode(config.with_name("orders.json").read_bytes(), type=FaultPlan)


def note_process(config: Path, *, rank: int) -> None:
    """Publish the process of this rank to the other ranks."""
    # Renamed when it is complete: another rank may read it at any time.
    draft = config.with_name(f"rank-{rank}.pid.new")
    draft.write_text(str(os.getpid()))
    draft.replace(_process_file(config, rank))


def process_of(config: Path, *, rank: int) -> int:
    """Return the process of a rank that has published it."""
    return int(_process_file(config, rank).read_text())


def note_struck(config: Path, struck: Struck) -> bool:
    """Record that the fault happens now; return False if it has happened before."""
    try:
        descriptor = os.open(_struck_file(config), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(struck))
    return True


def read_struck(config: Path) -> Struck | None:
    """Return what has happened, None if nothing has yet."""
    try:
        return msgspec.json.decode(_struck_file(config).read_bytes(), type=Struck)
    except (FileNotFoundError, msgspec.DecodeError):  # created, but not written yet
        return None


def note_halted(config: Path, *, rank: int) -> None:
    """Record that a rank stops itself now."""
    _halted_file(config, rank).touch()


def have_halted(config: Path, halt: Halt) -> bool:
    """Return whether all victims of a halt have come by its point."""
    return all(_halted_file(config, rank).exists() for rank in halt.victims)


def _halted_file(config: Path, rank: int) -> Path:
    return config.with_name(f"halted-{rank}")


def _process_file(config: Path, rank: int) -> Path:
    return config.with_name(f"rank-{rank}.pid")


def _struck_file(config: Path) -> Path:
    return config.with_name("struck.json")
