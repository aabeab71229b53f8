"""Published, simulated and paced seconds of all settings, and the reports on them."""

from dataclasses import dataclass
from pathlib import Path

from experiments.compare_group.cases import Setting
from experiments.compare_group.paced import TABLE as PACED
from experiments.compare_group.paced import read_rows
from experiments.compare_group.simulated import TABLE as SIMULATED
from experiments.table import Row
from jaxpipe.baselines.systems import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds per step of one setting on one case; None where there is no value."""

    runs: str
    published: float | None
    simulated: float
    paced: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The seconds of all settings on all cases, in the order of `cases.toml`."""

    cases: tuple[str, ...]
    seconds: dict[tuple[str, Setting], Seconds]

    def of(self, case: str, setting: Setting) -> Seconds:
        """Return the seconds of a setting on a case."""
        return self.seconds[case, setting]

    def ratio(self, case: str, over: Setting, under: Setting) -> tuple[float, float | None]:
        """Return the ratio of two settings' seconds: simulated, and paced."""
        first, second = self.of(case, over), self.of(case, under)
        return first.simulated / second.simulated, quotient(first.paced, second.paced)


def read_results(folder: Path) -> Results:
    """Read the tables of a folder.

    Where Megatron's best layout is its pipeline, both share one execution.
    """
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
    """Return the quotient, or None if a value is missing."""
    return None if over is None or under is None else over / under


_THEIRS = (Setting.DTFM, Setting.DTFM_UNSCHEDULED)
_PUBLISHED_WITHIN, _SIMULATED_WITHIN = 0.15, 0.10


def end_to_end(results: Results) -> list[Row]:
    """Compare Megatron's best layout with ours: (a) over (c)."""
    rows: list[Row] = []
    for case in results.cases:
        theirs = results.of(case, Setting.MEGATRON_OPTIMAL)
        ours = results.of(case, Setting.OURS)
        simulated, paced = results.ratio(case, Setting.MEGATRON_OPTIMAL, Setting.OURS)
        rows.append(
            {
                "case": case,
                "(a) runs": theirs.runs,
                "(a) published": _cell(theirs.published),
                "(a) simulated": theirs.simulated,
                "(a) paced": _cell(theirs.paced),
                "(c) runs": ours.runs,
                "(c) simulated": ours.simulated,
                "(c) paced": _cell(ours.paced),
                "(a)/(c) simulated": simulated,
                "(a)/(c) paced": _cell(paced),
            }
        )
    return rows


def scheduler(results: Results) -> list[Row]:
    """Compare ours with and without a scheduler, and Megatron's pipeline: (c), (d), (b)."""
    rows: list[Row] = []
    for case in results.cases:
        row: dict[str, str | int | float] = {"case": case}
        for setting in (Setting.OURS, Setting.OURS_UNSCHEDULED, Setting.MEGATRON_P8):
            row[f"({setting.letter}) simulated"] = results.of(case, setting).simulated
            row[f"({setting.letter}) paced"] = _cell(results.of(case, setting).paced)
        for over in (Setting.OURS_UNSCHEDULED, Setting.MEGATRON_P8):
            simulated, paced = results.ratio(case, over, Setting.OURS)
            row[f"({over.letter})/(c) simulated"] = simulated
            row[f"({over.letter})/(c) paced"] = _cell(paced)
        rows.append(row)
    return rows


def implementation(results: Results, case: str) -> list[Row]:
    """Compare Megatron's pipeline with ours without a scheduler on one network: (b) over (d)."""
    simulated, paced = results.ratio(case, Setting.MEGATRON_P8, Setting.OURS_UNSCHEDULED)
    rows: list[Row] = [
        {
            "setting": setting.value,
            "runs": results.of(case, setting).runs,
            "simulated": results.of(case, setting).simulated,
            "paced": _cell(results.of(case, setting).paced),
        }
        for setting in (Setting.MEGATRON_P8, Setting.OURS_UNSCHEDULED, Setting.DTFM)
    ]
    rows.append({"setting": "(b)/(d)", "runs": "", "simulated": simulated, "paced": _cell(paced)})
    return rows


def against_published(results: Results) -> list[Row]:
    """Compare paced DT-FM with its published and simulated seconds."""
    rows: list[Row] = []
    for case in results.cases:
        for setting in _THEIRS:
            each = results.of(case, setting)
            published = quotient(each.paced, each.published)
            simulated = quotient(each.paced, each.simulated)
            rows.append(
                {
                    "case": case,
                    "setting": setting.value,
                    "published": _cell(each.published),
                    "simulated": each.simulated,
                    "paced": _cell(each.paced),
                    "paced/published": _cell(published),
                    "within 15 %": _within(published, _PUBLISHED_WITHIN),
                    "paced/simulated": _cell(simulated),
                    "within 10 %": _within(simulated, _SIMULATED_WITHIN),
                }
            )
    return rows


def against_theirs(results: Results) -> list[Row]:
    """Compare DT-FM with ours, both scheduled: (e) over (c)."""
    rows: list[Row] = []
    for case in results.cases:
        simulated, paced = results.ratio(case, Setting.DTFM, Setting.OURS)
        rows.append(
            {
                "case": case,
                "(e) paced": _cell(results.of(case, Setting.DTFM).paced),
                "(c) paced": _cell(results.of(case, Setting.OURS).paced),
                "(e)/(c) simulated": simulated,
                "(e)/(c) paced": _cell(paced),
                "within 10 %": _within(quotient(paced, simulated), _SIMULATED_WITHIN),
            }
        )
    return rows


def _cell(value: float | None) -> str | float:
    return "" if value is None else value


def _within(ratio: float | None, part: float) -> str:
    if ratio is None:
        return ""
    return "yes" if abs(ratio - 1) <= part else "no"
