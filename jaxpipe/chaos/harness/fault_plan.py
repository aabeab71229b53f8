"""What chaos tells the ranks of a run, in files beside the run's configuration.

::

    config.toml     the run
    orders.json     what is to happen, once
    rank-2.pid      the process of each rank
    struck.json     it has happened: made by whoever does it, and by nobody twice
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
class FaultPlan:
    """What ranks do that they would not do by themselves: die, and compile for longer."""

    kill: Kill | None = None
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """What has happened, and when by `time.monotonic`, which processes of a host share."""

    victim: int
    doing: str
    at_s: float


def write_fault_plan(config: Path, orders: FaultPlan) -> None:
    """Give orders to the ranks of the run of a configuration."""
    config.with_name("orders.json").write_bytes(msgspec.json.encode(orders))


def read_fault_plan(config: Path) -> FaultPlan:
    """Return the orders of the ranks of a configuration."""
    return msgspec.json.decode(config.with_name("orders.json").read_bytes(), type=FaultPlan)


def note_process(config: Path, *, rank: int) -> None:
    """Tell the other ranks which process this rank is."""
    draft = config.with_name(f"rank-{rank}.pid.new")
    draft.write_text(str(os.getpid()))
    draft.replace(_process_file(config, rank))


def process_of(config: Path, *, rank: int) -> int:
    """Return the process of a rank that has noted it."""
    return int(_process_file(config, rank).read_text())


def note_struck(config: Path, struck: Struck) -> bool:
    """Tell that it happens now, and return whether it had not happened before."""
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
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _process_file(config: Path, rank: int) -> Path:
    return config.with_name(f"rank-{rank}.pid")


def _struck_file(config: Path) -> Path:
    return config.with_name("struck.json")
