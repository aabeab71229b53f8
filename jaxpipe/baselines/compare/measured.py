"""Measurements of one system of a comparison, and their files."""

import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from jaxpipe.baselines.systems import System
from jaxpipe.errors import RunError
from jaxpipe.foreign_file import lines_of
from jaxpipe.runtime.process.compile_cache import warmth

_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step: its number from 1, its mean loss in nats per token, and its seconds."""

    step: int
    loss: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """The measurements of one rank.

    `peak_bytes` is the peak memory of its process, including Python and libraries. `sent_bytes`
    and `slow_bytes` count the bytes of one step: all that the rank sends, and those that it sends
    over slow links. Of `num_compiled` executables the compile cache had `num_cached`.
    """

    compile_s: float
    peak_bytes: int
    sent_bytes: float
    slow_bytes: float
    num_compiled: int = 0
    num_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSystem:
    """The run of a system on all ranks.

    `strategy` describes how the model is sharded or partitioned. `is_counted` is true where bytes
    are counted in the compiled step, as rings would send them, instead of measured. `search_s` and
    `searched_for`, the measured speeds, are None if no strategy was searched for.
    """

    system: System
    strategy: str
    tokens_per_step: int
    steps: tuple[MeasuredStep, ...]
    ranks: tuple[RankPart, ...]
    is_counted: bool
    search_s: float | None
    searched_for: str | None = None

    @property
    def step_s(self) -> float:
        """The median over the steps after the first; the first if there is only one."""
        # The first step includes late compilation and allocation.
        return median(step.step_s for step in self.steps[1:] or self.steps)

    @property
    def tokens_per_s(self) -> float:
        """The tokens of a step over its median time."""
        return self.tokens_per_step / self.step_s

    @property
    def compile_s(self) -> float:
        """The time of the slowest rank."""
        return max(rank.compile_s for rank in self.ranks)

    @property
    def compiled_from(self) -> str:
        """Whether compilation read the compile cache: `cold`, `warm`, or in part."""
        return warmth(
            sum(rank.num_compiled for rank in self.ranks),
            sum(rank.num_cached for rank in self.ranks),
        )

    @property
    def peak_bytes(self) -> int:
        """The memory of the largest rank."""
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def slow_bytes(self) -> float:
        """The bytes that all ranks send over slow links in a step."""
        return sum(rank.slow_bytes for rank in self.ranks)

    @property
    def sent_bytes(self) -> float:
        """The bytes that all ranks send in a step."""
        return sum(rank.sent_bytes for rank in self.ranks)


def peak_bytes() -> int:
    """Return the peak memory of this process so far."""
    # VmHWM is that of this program; Linux keeps `ru_maxrss` over exec, so it may be the launcher's.
    status = Path("/proc/self/status")
    if status.exists():
        for line in lines_of(status.read_text()):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIB  # "kB" in /proc are KiB
    return maxrss_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.platform)


def maxrss_bytes(maxrss: int, platform: str) -> int:
    """Return the `ru_maxrss` of getrusage(2) in bytes: macOS counts bytes, all others KiB.

    >>> maxrss_bytes(3, "linux"), maxrss_bytes(3, "darwin")
    (3072, 3)
    """
    return maxrss if platform == "darwin" else maxrss * _KIB


def write_measured(measured: MeasuredSystem, folder: Path) -> None:
    """Write the file of a system."""
    folder.mkdir(parents=True, exist_ok=True)
    _file(folder, measured.system).write_bytes(msgspec.json.encode(measured))


def read_measured(folder: Path, system: System) -> MeasuredSystem:
    """Read the file of a system.

    Raises:
        RunError: its ranks have not written it.
    """
    path = _file(folder, system)
    if not path.exists():
        raise RunError(f"{system}: its ranks ended without writing {path}; see their output above")
    return msgspec.json.decode(path.read_bytes(), type=MeasuredSystem)


def _file(folder: Path, system: System) -> Path:
    return folder / f"{system}.json"
