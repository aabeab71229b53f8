"""The systems of `systems.toml`, and what a run of one of them needs and returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Protocol

import msgspec

from experiments.over_the_wire.meters import Meters
from jaxpipe.config import Config
from jaxpipe.topo import Cluster

_FILE = Path(__file__).parent / "systems.toml"
JAXPIPE, ISLANDS_APART = "jaxpipe", "islands_apart"
"""Programs of jaxpipe; the others are those of `peers/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A way to train: a row of `systems.toml`."""

    system: str
    schedule: str
    program: str
    learning_rate: float
    environment: str = ""
    plan: tuple[str, ...] = ()
    """Changes to the configuration that `jaxpipe plan` reads, with `{hosts}` for their number."""
    objective: str = "time"
    """`--objective` of `jaxpipe plan`: with `loss` it may compress messages, or have islands."""
    cut: tuple[int, ...] = ()
    """Layers of each stage, of which a rank has two; by default those of jaxpipe's plan."""
    every: int = 0
    """Steps from one meeting to the next, of systems that meet seldom."""
    survives: bool = False
    """Whether it claims to survive the loss of a rank."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """System and schedule, as `--only` takes them."""
        return f"{self.system}: {self.schedule}"

    def runs_on(self, num_hosts: int) -> bool:
        """Return whether each rank has two of its stages, if they are set."""
        return not self.cut or len(self.cut) == 2 * num_hosts

    @property
    def takes_plan(self) -> bool:
        """Whether the schedule is that of a plan of jaxpipe."""
        return self.program == JAXPIPE or self.schedule == "jaxpipe's"

    def matches(self, text: str) -> bool:
        """Return whether `--only` means it: its system, or its name.

        >>> System(system="a", schedule="b", program="c", learning_rate=1.0).matches("a")
        True
        """
        return text in (self.system, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run: a system over a network, its configuration, and a folder for its files."""

    system: System
    network: str
    cluster: Cluster
    config: Config
    changes: tuple[str, ...]
    """To `model.toml`, for the commands of jaxpipe."""
    folder: Path
    half_cores: Sequence[str] = ()
    """Hosts that get half of a core."""
    kill_after: int | None = None
    """The step after which the last rank is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A step of a run: the clock at its end, its loss, and the held-out loss where measured."""

    step: int
    seconds: float
    loss: float
    held_out: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run has shown. `recovery_s` is measured where a rank was killed."""

    points: tuple[Point, ...]
    meters: Meters
    clocks: tuple[tuple[float, ...], ...] = ()
    """The seconds at the end of each step, of each rank: some wait for no other."""
    schedule: str = ""
    """That of the plan, in place of the system's."""
    recovery_s: float = nan
    load: str = ""
    """The load of the machine at the end."""


class Runner(Protocol):
    """Trains a system over an emulated network."""

    def __call__(self, cell: Cell) -> Outcome:
        """Run a cell.

        Raises:
            RuntimeError: a command failed; the message has the end of its output.
        """
        ...


def read_systems() -> tuple[System, ...]:
    """Return all systems, in the order of the table.

    Raises:
        msgspec.ValidationError: a field is unknown, missing or of another type.
    """
    rows = msgspec.toml.decode(_FILE.read_bytes())["systems"]
    return tuple(msgspec.convert(row, System) for row in rows)
