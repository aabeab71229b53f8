"""The reports of the paper, from published, simulated and paced seconds."""

from experiments.compare_group.outcome import Results, quotient
from experiments.compare_group.setting import Setting
from experiments.dtfm_iteration_time.table import Row

_THEIRS = (Setting.DTFM, Setting.DTFM_UNSCHEDULED)
_PUBLISHED_WITHIN, _SIMULATED_WITHIN = 0.15, 0.10


def end_to_end(results: Results) -> list[Row]:
    """Return Megatron at its best beside ours, (a) over (c)."""
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
    """Return ours with and without a scheduler, and Megatron's pipeline: (c), (d), (b)."""
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
    """Return Megatron's pipeline beside ours without a scheduler, (b) over (d), on one network."""
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
    """Return DT-FM's own options, executed, beside what was published and what is simulated."""
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
    """Return how much faster ours is than DT-FM's, both scheduled: (e) over (c)."""
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
