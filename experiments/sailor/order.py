"""The order of the published layouts: jaxpipe's simulator against the judge.

Kendall's tau counts pairs of layouts of the same scenario: those in the same order less those in
the other, over all. Layouts with unequal numbers of replicas are not simulated.
"""

from collections.abc import Sequence
from itertools import combinations

from experiments.sailor.planned import own_step_s
from experiments.sailor.published import judged_plans, scenarios
from experiments.table import Row

APART = 0.005
"""Layouts that the judge has closer together than this are equal for the second tau."""


def order_rows() -> list[Row]:
    """Return the seconds of each layout: the judge's, and ours with both kinds of messages."""
    rows: list[Row] = []
    for each in judged_plans():
        replicas = {sum(run.replicas for run in stage) for stage in each.layout.stages}
        if len(replicas) > 1:
            continue
        scenario = scenarios()[each.scenario]
        rows.append(
            {
                "scenario": each.scenario,
                "planner": each.planner,
                "judged_s": each.step_s,
                "blocking_s": own_step_s(each.layout, scenario, blocking=True),
                "overlapping_s": own_step_s(each.layout, scenario, blocking=False),
            }
        )
    return rows


def kendall_tau(rows: Sequence[Row], column: str, *, apart: float = 0.0) -> float:
    """Return tau of a column against the judge, over pairs that are further apart than a part.

    >>> rows = [{"scenario": "a", "judged_s": n, "ours": n * n} for n in (1.0, 2.0, 3.0)]
    >>> kendall_tau(rows, "ours"), kendall_tau([*rows[:2], {**rows[2], "ours": 2.0}], "ours")
    (1.0, 0.3333333333333333)
    """
    score = num = 0
    for one, other in combinations(rows, 2):
        judged = float(one["judged_s"]) - float(other["judged_s"])
        nearer = min(float(one["judged_s"]), float(other["judged_s"]))
        if one["scenario"] != other["scenario"] or abs(judged) <= apart * nearer:
            continue
        ours = float(one[column]) - float(other[column])
        num += 1
        score += (judged * ours > 0) - (judged * ours < 0)
    return score / num
