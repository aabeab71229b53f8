"""All results of the settings as one table of numbers: published, simulated and paced seconds."""

from dataclasses import dataclass
from pathlib import Path

from experiments.compare_group.paced import TABLE as PACED
from experiments.compare_group.paced import read_rows
from experiments.compare_group.setting import Setting
from experiments.compare_group.simulated import TABLE as SIMULATED
from jaxpipe.simulate import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """What is known of one setting on one case, in seconds a step; None where nothing is."""

    runs: str
    published: float | None
    simulated: float
    paced: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All of it; `cases` in their order."""

    cases: tuple[str, ...]
    seconds: dict[tuple[str, Setting], Seconds]

    def of(self, case: str, setting: Setting) -> Seconds:
        """Return what is known of a setting on a case."""
        return self.seconds[case, setting]

    def ratio(self, case: str, over: Setting, under: Setting) -> tuple[float, float | None]:
        """Return how many times longer one setting takes than another: simulated, and paced."""
        first, second = self.of(case, over), self.of(case, under)
        return first.simulated / second.simulated, quotient(first.paced, second.paced)


def read_results(folder: Path) -> Results:
    """Read the tables of a folder; Megatron's best layout may be the pipeline, executed once."""
    simulated = read_rows(folder / SIMULATED)
    paced = {
        (row["case"], Setting(row["setting"])): float(row["paced_s"])
        for row in read_rows(folder / PACED)
    }
    seconds: dict[tuple[str, Setting], Seconds] = {}
    for row in simulated:
        case, setting = row["case"], Setting(row["setting"])
        executed = paced.get((case, setting))
        if row["runs"] == System.MEGATRON_P8:
            executed = paced.get((case, Setting.MEGATRON_P8))
        seconds[case, setting] = Seconds(
            runs=row["runs"],
            published=float(row["published_s"]) if row["published_s"] else None,
            simulated=float(row["simulated_s"]),
            paced=executed,
        )
    return Results(cases=tuple(dict.fromkeys(row["case"] for row in simulated)), seconds=seconds)


def quotient(over: float | None, under: float | None) -> float | None:
    """Return a quotient, if both are known."""
    return None if over is None or under is None else over / under
