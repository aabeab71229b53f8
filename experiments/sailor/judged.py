"""The judge against the published one: every planner's layout in every scenario."""

from functools import cache

from experiments.sailor.judge import Judge
from experiments.sailor.published import judged_plans, model, scenarios, table
from experiments.table import Row

TOLERANCE = 1e-9


@cache
def judge_of(scenario: str) -> Judge:
    """Return the judge of a scenario's model and batch."""
    found = scenarios()[scenario]
    return Judge(model(found.model), found.batch)


def judged_rows() -> list[Row]:
    """Return a row for each published layout: their seconds and dollars, ours, the difference."""
    theirs = {(row["scenario"], row["planner"]): row for row in table("planner_results")}
    rows: list[Row] = []
    for each in judged_plans():
        judge = judge_of(each.scenario)
        step_s = judge.step_s(each.layout)
        rows.append(
            {
                "scenario": each.scenario,
                "planner": each.planner,
                "published_s": each.step_s,
                "ours_s": step_s,
                "difference": step_s / each.step_s - 1,
                "published_dollars": float(theirs[each.scenario, each.planner]["dollars_per_step"]),
                "ours_dollars": judge.dollars(each.layout, step_s),
            }
        )
    return rows


def differing(rows: list[Row]) -> list[str]:
    """Return the rows whose seconds are not the published ones, or whose dollars are not."""
    return [
        f"{row['scenario']} {row['planner']}: {row['ours_s']} s, published {row['published_s']} s; "
        f"{row['ours_dollars']} dollars, published {row['published_dollars']}"
        for row in rows
        if not abs(float(row["difference"])) <= TOLERANCE
        # Published with four decimals.
        or not abs(float(row["ours_dollars"]) - float(row["published_dollars"])) <= 1e-4
    ]
